//! The compiled core of tailrace: whole batches of bytes in, bytes out.
//!
//! It has no I/O, no threads and no settings, but for `kafka`, which hands records to the client library of Kafka.
//! Python says what is right: each function here does what a function of the reference in `src/tailrace` does, to the
//! byte, and declines what it does not do, which the reference then does.
//! Each part of the product has a module that registers its functions here; `bson` is what they share.

#![deny(unsafe_code)] // but in `kafka` and `kafka_library`, which call a library of C

use pyo3::prelude::*;

mod arrow;
mod avro;
pub mod bson;
mod buffers;
mod cloud_events;
mod columns;
mod debezium;
mod decimal;
mod documents;
mod engine;
mod engine_entry;
mod engine_event;
mod engine_update;
pub mod error;
mod event;
mod flat;
mod json_schema;
mod kafka;
mod kafka_library;
mod keys;
pub mod keystring;
mod policy;
mod record_batch;
mod records;
mod reply;
mod schemas;
mod spelling;
mod styles;
mod text;
pub mod writer;

/// Grows when a function that Python calls is added or changes; `tailrace.kernel` asks for the one it knows.
const REVISION: u32 = 14;

#[pymodule]
fn tailrace_kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("REVISION", REVISION)?;
    columns::register(module)?;
    documents::register(module)?;
    engine::register(module)?;
    error::register(module)?;
    kafka::register(module)?;
    policy::register(module)?;
    record_batch::register(module)?;
    records::register(module)?;
    reply::register(module)
}
