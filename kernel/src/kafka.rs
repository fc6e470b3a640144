//! Whole batches of records handed to librdkafka, and its delivery reports counted, without a step of Python for each.
//!
//! The library keeps its own threads and sockets; here is only the hand-over. All that is unsafe in the kernel is in
//! this file and in `kafka_library`: calls of C.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyNotImplementedError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};

use crate::error::KernelError;
use crate::kafka_library::{
    ANY_PARTITION, EVENT_DELIVERY, EVENT_LOG, Failure, Functions, PURGE_ALL, QUEUE_FULL, c_string, text_of,
};
use crate::record_batch::{RecordBatch, Views};

/// How many headers a record has.
const HEADERS_AT_MOST: usize = 8;

/// The handles of one producer; they live as long as it does.
struct Handles {
    functions: Functions,
    producer: *mut c_void,
    queue: *mut c_void,
    topics: Mutex<HashMap<String, usize>>,
}

// SAFETY: the handles of librdkafka may be used from any thread, and by several at once (INTRODUCTION.md, "Threads and
// callbacks"); what is ours is behind a mutex.
unsafe impl Send for Handles {}
unsafe impl Sync for Handles {}

/// A producer of librdkafka that takes batches and counts what became of them.
#[pyclass(frozen, module = "tailrace_kernel")]
pub struct KafkaProducer(Handles);

/// What has come since the last look: of each batch how many records were delivered; failures as batch, place in it
/// and code; and lines of the log with their level.
type Reports = (Vec<(u32, usize)>, Vec<(u32, u32, i32)>, Vec<(i32, String)>);

#[pymethods]
impl KafkaProducer {
    /// Make a producer with the library at `path`; settings are those of librdkafka. NotImplementedError: this library
    /// is not one to be called from here.
    #[new]
    fn new(py: Python<'_>, path: &str, settings: Vec<(String, String)>) -> PyResult<Self> {
        let functions = py.detach(|| Functions::load(path)).map_err(PyNotImplementedError::new_err)?;
        Handles::open(functions, &settings).map(KafkaProducer).map_err(KernelError::new_err)
    }

    /// Hand over the records of a batch from one on: `(key, value, headers, namespace, ...)`, each to the topic of its
    /// namespace, whose `name` counts. Gives how many of the batch were taken, and why the next one was not, 0 if there is none.
    fn send(
        &self,
        batch: u32,
        records: &Bound<'_, PyList>,
        topics: &Bound<'_, PyDict>,
        from: usize,
    ) -> PyResult<(usize, i32)> {
        let mut last: Option<(Bound<'_, PyAny>, *mut c_void)> = None;
        for place in from..records.len() {
            let record = records.get_item(place)?;
            let record = record.cast::<PyTuple>()?;
            let namespace = record.get_item(3)?;
            let topic = match &last {
                Some((known, topic)) if known.is(&namespace) => *topic,
                _ => {
                    let topic = self.topic_of(topics, &namespace)?;
                    last = Some((namespace, topic));
                    topic
                }
            };
            let (key, value, headers) = (record.get_item(0)?, record.get_item(1)?, record.get_item(2)?);
            let (key, value) = (bytes_of(&key)?, bytes_of(&value)?);
            let headers = self.0.headers(headers.cast::<PyList>()?)?;
            let opaque = opaque_of(batch, u32::try_from(place)?);
            // SAFETY: topics live as long as the producer, and the headers were made for this record.
            let code = unsafe {
                self.0.functions.produce(self.0.producer, (topic, ANY_PARTITION), key, value, headers, opaque)
            };
            if code != 0 {
                return Ok((place, code));
            }
        }
        Ok((records.len(), 0))
    }

    /// The same for records that are still in the kernel; the interpreter may do something else meanwhile.
    fn send_batch(
        &self,
        py: Python<'_>,
        batch: u32,
        records: &RecordBatch,
        topics: &Bound<'_, PyDict>,
        from: usize,
    ) -> PyResult<(usize, i32)> {
        let mut handles = Vec::with_capacity(records.kinds.len());
        for kind in &records.kinds {
            handles.push(self.topic_of(topics, PyString::new(py, &kind.namespace).as_any())?);
        }
        let handles = handles.into_iter().map(|topic| topic as usize).collect::<Vec<_>>();
        let views = records.views(py)?;
        let count = u32::try_from(records.__len__())? as usize;
        let failed = py.detach(|| self.0.send_all(batch, &views, &handles, from));
        Ok(failed.unwrap_or((count, 0)))
    }

    /// Hand over one record without headers, as of batch 0, which nobody counts; gives why it was not taken, 0 if it was.
    fn send_one(&self, topic: &str, partition: c_int, key: Option<&[u8]>, value: Option<&[u8]>) -> PyResult<i32> {
        let topic = self.0.topic(topic).map_err(KernelError::new_err)?;
        // SAFETY: the topic lives as long as the producer, and the headers were made for this record.
        unsafe {
            let headers = (self.0.functions.headers_new)(0);
            Ok(self.0.functions.produce(self.0.producer, (topic, partition), key, value, headers, 0))
        }
    }

    /// Fence older producers of the same transactional id, and end what they left open.
    fn init_transactions(&self, py: Python<'_>, timeout: f64) -> Option<Failure> {
        self.step(py, self.0.functions.init_transactions, timeout)
    }

    fn begin_transaction(&self, py: Python<'_>) -> Option<Failure> {
        // SAFETY: the handle lives as long as this object, and the error that it gives is ours.
        py.detach(|| unsafe { self.0.functions.failure((self.0.functions.begin_transaction)(self.0.producer)) })
    }

    /// Send what lingers, and commit when all of it has arrived and its reports are taken, which is the caller's part.
    fn commit_transaction(&self, py: Python<'_>, timeout: f64) -> Option<Failure> {
        self.step(py, self.0.functions.commit_transaction, timeout)
    }

    /// Drop what is not sent, and abort when the reports of that are taken, which is the caller's part.
    fn abort_transaction(&self, py: Python<'_>, timeout: f64) -> Option<Failure> {
        self.step(py, self.0.functions.abort_transaction, timeout)
    }

    /// Take the delivery reports that have come; wait up to `timeout` seconds for the first.
    fn poll(&self, py: Python<'_>, timeout: f64) -> Reports {
        py.detach(|| self.0.poll(timeout))
    }

    /// Send at once what lingers, and wait up to `timeout` seconds until all is delivered.
    fn flush(&self, py: Python<'_>, timeout: f64) {
        // SAFETY: the handle lives as long as this object.
        py.detach(|| unsafe { (self.0.functions.flush)(self.0.producer, milliseconds(timeout)) });
    }

    /// Drop what is not sent; reports of that come as of everything else.
    fn purge(&self, py: Python<'_>) {
        // SAFETY: the handle lives as long as this object.
        py.detach(|| unsafe { (self.0.functions.purge)(self.0.producer, PURGE_ALL) });
    }

    /// How many records are neither delivered nor reported as failed.
    fn __len__(&self) -> usize {
        // SAFETY: the handle lives as long as this object.
        usize::try_from(unsafe { (self.0.functions.outq_len)(self.0.producer) }).unwrap_or(0)
    }

    #[classattr]
    const QUEUE_FULL: i32 = QUEUE_FULL;
}

impl KafkaProducer {
    /// Make a step of a transaction; the interpreter may do something else meanwhile.
    fn step(
        &self,
        py: Python<'_>,
        step: unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void,
        timeout: f64,
    ) -> Option<Failure> {
        // SAFETY: the handle lives as long as this object, the step is one of this library, and its error is ours.
        py.detach(|| unsafe { self.0.functions.failure(step(self.0.producer, milliseconds(timeout))) })
    }

    fn topic_of(&self, topics: &Bound<'_, PyDict>, namespace: &Bound<'_, PyAny>) -> PyResult<*mut c_void> {
        let topic = topics.get_item(namespace)?;
        let topic = topic.ok_or_else(|| KernelError::new_err("a record has an unknown topic"))?;
        let name: String = topic.getattr(intern!(topic.py(), "name"))?.extract()?;
        self.0.topic(&name).map_err(KernelError::new_err)
    }
}

fn bytes_of<'a>(value: &'a Bound<'_, PyAny>) -> PyResult<Option<&'a [u8]>> {
    if value.is_none() { Ok(None) } else { Ok(Some(value.cast::<PyBytes>()?.as_bytes())) }
}

/// What the library keeps with a record for us; it has the size of a pointer, which is 64 bits here.
fn opaque_of(batch: u32, place: u32) -> u64 {
    u64::from(batch) << 32 | u64::from(place)
}

/// `as` keeps what is too large or no number at all within the bounds of C.
fn milliseconds(seconds: f64) -> c_int {
    (seconds * 1000.0) as c_int
}

impl Handles {
    fn open(functions: Functions, settings: &[(String, String)]) -> Result<Self, String> {
        let producer = functions.open(settings)?;
        // SAFETY: the producer is new, and null is its own main queue.
        unsafe {
            (functions.set_log_queue)(producer, null_mut());
            let queue = (functions.queue_get_main)(producer);
            Ok(Handles { functions, producer, queue, topics: Mutex::default() })
        }
    }

    /// Give the handle of a topic; it lives as long as the producer.
    fn topic(&self, name: &str) -> Result<*mut c_void, String> {
        let mut topics = self.topics.lock().map_err(|error| error.to_string())?;
        if let Some(&known) = topics.get(name) {
            return Ok(known as *mut c_void);
        }
        let text = c_string(name)?;
        // SAFETY: the producer lives, the text is null-terminated, and null is the default configuration.
        let topic = unsafe { (self.functions.topic_new)(self.producer, text.as_ptr(), null_mut()) };
        if topic.is_null() {
            return Err(format!("librdkafka refuses the topic {name}"));
        }
        topics.insert(name.to_owned(), topic as usize);
        Ok(topic)
    }

    fn headers(&self, headers: &Bound<'_, PyList>) -> PyResult<*mut c_void> {
        // SAFETY: a list of headers is ours until a record takes it, and is given back when it cannot be filled.
        let list = unsafe { (self.functions.headers_new)(headers.len()) };
        let added = headers.iter().try_for_each(|header| {
            let header = header.cast_into::<PyTuple>()?;
            let (name, value) = (header.get_item(0)?, header.get_item(1)?);
            let (name, value) = (name.cast::<PyString>()?.to_str()?, value.cast::<PyBytes>()?.as_bytes());
            // SAFETY: as above.
            unsafe { self.functions.add_header(list, name, value) };
            Ok::<(), PyErr>(())
        });
        if let Err(error) = added {
            // SAFETY: as above.
            unsafe { (self.functions.headers_destroy)(list) };
            return Err(error);
        }
        Ok(list)
    }

    /// Hand over records until one is refused: its place in the batch, and why.
    fn send_all(&self, batch: u32, views: &Views<'_>, topics: &[usize], from: usize) -> Option<(usize, i32)> {
        let mut text = Vec::new();
        for (place, view) in views.iter().enumerate().skip(from) {
            // SAFETY: a list of headers is ours until a record takes it; topics live as long as the producer.
            let code = unsafe {
                let headers = (self.functions.headers_new)(HEADERS_AT_MOST);
                let Ok(()) = view.headers(&mut text, |name, value| {
                    self.functions.add_header(headers, name, value);
                    Ok::<(), std::convert::Infallible>(())
                });
                let topic = topics[view.kind] as *mut c_void;
                let opaque = opaque_of(batch, place as u32);
                self.functions.produce(
                    self.producer,
                    (topic, ANY_PARTITION),
                    Some(view.key),
                    view.value,
                    headers,
                    opaque,
                )
            };
            if code != 0 {
                return Some((place, code));
            }
        }
        None
    }

    fn poll(&self, timeout: f64) -> Reports {
        let (mut delivered, mut failures, mut lines) = (HashMap::new(), Vec::new(), Vec::new());
        let deadline = Instant::now() + Duration::from_millis(milliseconds(timeout).max(0) as u64);
        loop {
            let has_reports = !(delivered.is_empty() && failures.is_empty());
            let left = if has_reports { 0 } else { deadline.saturating_duration_since(Instant::now()).as_millis() };
            // SAFETY: an event is ours until it is destroyed, and what it points to lives as long.
            unsafe {
                let event = (self.functions.queue_poll)(self.queue, left as c_int);
                if event.is_null() {
                    return (delivered.into_iter().collect(), failures, lines);
                }
                match (self.functions.event_type)(event) {
                    EVENT_DELIVERY => self.functions.messages(event, |message| {
                        let opaque = message.opaque as u64;
                        match message.error {
                            0 => *delivered.entry((opaque >> 32) as u32).or_insert(0) += 1,
                            code => failures.push(((opaque >> 32) as u32, opaque as u32, code)),
                        }
                    }),
                    EVENT_LOG => lines.extend(self.log_line(event)),
                    _ => {}
                }
                (self.functions.event_destroy)(event);
            }
        }
    }

    /// Read a line of the log.
    ///
    /// # Safety
    /// The event is one of the log, and alive.
    unsafe fn log_line(&self, event: *mut c_void) -> Option<(i32, String)> {
        let (mut facility, mut text, mut level) = (null(), null(), 0);
        // SAFETY: the places that it writes to are ours; the texts live as long as the event.
        unsafe {
            if (self.functions.event_log)(event, &mut facility, &mut text, &mut level) != 0 || text.is_null() {
                return None;
            }
            Some((level, text_of(text)))
        }
    }

    fn destroy(&self) {
        let topics = self.topics.lock().map(|mut topics| std::mem::take(&mut *topics)).unwrap_or_default();
        // SAFETY: nothing else has the handles any more; they are destroyed once, the producer last.
        unsafe {
            for topic in topics.into_values() {
                (self.functions.topic_destroy)(topic as *mut c_void);
            }
            (self.functions.queue_destroy)(self.queue);
            (self.functions.destroy)(self.producer);
        }
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        let this = &*self;
        Python::attach(|py| py.detach(|| this.destroy())); // it waits for the library's threads
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<KafkaProducer>()
}
