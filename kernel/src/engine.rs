//! The engine: a batch of oplog entries in, the events of inserts, updates and deletes out.
//!
//! What it does not do it leaves to the reference (`tailrace.engine.make_events`), by the entry's position, so that the
//! order is kept.

use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::engine_event::{Form, Known, Maker, Namespace, Outcome, Prefilter};
use crate::reply::Documents;

/// More collections than these are learned anew.
const MAX_KNOWN: usize = 100_000;
/// A larger buffer is not kept from one batch to the next.
const MAX_BUFFER: usize = 4 * 1024 * 1024;

/// Makes the events of one stream.
#[pyclass(module = "tailrace_kernel")]
pub struct Engine {
    form: Form,
    known: Known,
    buffer: Mutex<Vec<u8>>,
}

/// A name, and the types and first bytes of values.
type Condition = (Vec<u8>, Vec<(u8, Vec<u8>)>);
/// Where the events of entries belong that are left to the reference.
type Declined = Vec<(usize, usize)>;
/// The bytes of events; their times, namespaces and types; and how many bytes they have.
type Columns<'py> = (Bound<'py, PyList>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize);

/// What was made of a batch, before Python's objects are.
#[derive(Default)]
struct Made {
    bytes: Vec<u8>,
    /// The end of each event in the bytes.
    ends: Vec<usize>,
    times: Vec<u8>,
    namespaces: Vec<u8>,
    kinds: Vec<u8>,
    /// How many events stand before an entry that is left to the reference, and which one that is.
    declined: Declined,
    /// The entry to go on with, when something has to be learned for it.
    next: usize,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (*, version, has_wall_time, shows_uuid, shows_migrations, shows_raw_updates, disambiguates, logs_keys, declined_until, prefilter))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        version: u8,
        has_wall_time: bool,
        shows_uuid: bool,
        shows_migrations: bool,
        shows_raw_updates: bool,
        disambiguates: bool,
        logs_keys: bool,
        declined_until: u64,
        prefilter: Option<Condition>,
    ) -> PyResult<Engine> {
        if !(1..=2).contains(&version) {
            return Err(PyValueError::new_err("tokens of that version are made by the reference"));
        }
        Ok(Engine {
            form: Form {
                version,
                has_wall_time,
                shows_uuid,
                shows_migrations,
                shows_raw_updates,
                disambiguates,
                logs_keys,
                declined_until,
                prefilter: prefilter.map(|(name, values)| Prefilter { name, values }),
            },
            known: Known::default(),
            buffer: Mutex::default(),
        })
    }

    /// Say whether a namespace is watched, and which types of its events are wanted: a bit each, None for "ask".
    fn learn_namespace(&mut self, namespace: Vec<u8>, is_watched: bool, wanted: Option<u8>, element: Vec<u8>) {
        self.known.numbers.insert(namespace, self.known.namespaces.len());
        self.known.namespaces.push(Namespace { is_watched, wanted, element });
    }

    fn forget_namespaces(&mut self) {
        self.known.numbers.clear();
        self.known.namespaces.clear();
    }

    fn knows_namespace(&self, namespace: &[u8]) -> bool {
        self.known.numbers.contains_key(namespace)
    }

    /// Say which paths the shard key of a collection has.
    fn learn_shard_key(&mut self, uuid: [u8; 16], paths: Vec<Vec<u8>>) {
        if self.known.shard_keys.len() >= MAX_KNOWN {
            self.known.shard_keys.clear();
        }
        self.known.shard_keys.insert(uuid, paths);
    }

    /// Forget all shard keys: they may have changed.
    fn forget_shard_keys(&mut self) {
        self.known.shard_keys.clear();
    }

    /// Make events of entries from `start` on: the events, what is left to the reference, and where it stopped.
    ///
    /// The events are columns: their bytes, and packed their times (u64), the numbers of their namespaces in the order
    /// in which these were learned (u32), and of their types (u8). Each of `declined` is the number of events before
    /// it, and the position of the entry. It stops before an entry whose namespace or shard key has to be learned,
    /// otherwise at the end. Entries are a list of `bytes`, or `Documents`.
    fn events<'py>(
        &self,
        py: Python<'py>,
        entries: &Bound<'py, PyAny>,
        start: usize,
    ) -> PyResult<(Columns<'py>, Declined, usize)> {
        let listed: Vec<Bound<'py, PyBytes>>;
        let slices: Vec<&[u8]> = match entries.cast::<Documents>() {
            Ok(documents) => documents.get().slices(py),
            Err(_) => {
                listed = entries.extract()?;
                listed.iter().map(|entry| entry.as_bytes()).collect()
            }
        };
        let (form, known) = (&self.form, &self.known);
        let buffer = self.buffer.lock().map_or_else(|_| Vec::new(), |mut kept| std::mem::take(&mut *kept));
        let made = py.detach(|| make(form, known, buffer, &slices, start));
        let begins = std::iter::once(0).chain(made.ends.iter().copied());
        let raws = begins.zip(&made.ends).map(|(begin, &end)| PyBytes::new(py, &made.bytes[begin..end]));
        let raws = PyList::new(py, raws.collect::<Vec<_>>())?;
        let packed = |bytes: &[u8]| PyBytes::new(py, bytes);
        let size = made.bytes.len();
        let columns = (raws, packed(&made.times), packed(&made.namespaces), packed(&made.kinds), size);
        self.keep(made.bytes);
        Ok((columns, made.declined, made.next))
    }
}

impl Engine {
    /// Keep a buffer for the next batch: memory that was used before is faster than new one.
    fn keep(&self, mut buffer: Vec<u8>) {
        if let (true, Ok(mut kept)) = (buffer.capacity() <= MAX_BUFFER, self.buffer.lock()) {
            buffer.clear();
            *kept = buffer;
        }
    }
}

fn make(form: &Form, known: &Known, buffer: Vec<u8>, entries: &[&[u8]], start: usize) -> Made {
    let left = entries.get(start..).unwrap_or_default();
    let mut maker = Maker::new(form, known, buffer);
    let mut made = Made { next: entries.len(), ..Made::default() };
    for (number, entry) in left.iter().enumerate() {
        match maker.event(entry) {
            Ok(Outcome::Made(namespace, kind, time)) => {
                made.ends.push(maker.out.bytes.len());
                made.times.extend_from_slice(&time.to_ne_bytes());
                made.namespaces.extend_from_slice(&(namespace as u32).to_ne_bytes());
                made.kinds.push(kind as u8);
            }
            Ok(Outcome::Dropped) => {}
            Ok(Outcome::Unknown) => {
                made.next = start + number;
                break;
            }
            Err(_) => made.declined.push((made.ends.len(), start + number)),
        }
    }
    made.bytes = maker.out.bytes;
    made
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Engine>()
}
