//! The client library of Kafka as C has it: its functions, the layouts that they take and give, and the proof of both.
//!
//! The library is the one that Python's client has loaded already, so nothing is linked or shipped twice. What is
//! written here from rdkafka.h is sound for the libraries that it was tried with: any other version is refused, and of
//! a known one a record is handed over and taken back before anything else is, and compared field by field. Whoever
//! is refused goes through Python's client instead (`capture/kafka_handover.py`).

#![allow(unsafe_code)]

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::{align_of, offset_of, size_of};
use std::ptr::{null, null_mut};
use std::sync::{LazyLock, Mutex};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

pub const CONF_OK: c_int = 0;
pub const PRODUCER: c_int = 0;
pub const EVENT_DELIVERY: c_int = 0x1;
pub const EVENT_LOG: c_int = 0x2;
pub const QUEUE_FULL: c_int = -184;
pub const PURGE_ALL: c_int = 0x1 | 0x2;
/// The partition that the key decides.
pub const ANY_PARTITION: c_int = -1;
const PURGED_FROM_QUEUE: c_int = -152;
const COPY: c_int = 0x2;
const TOPIC_HANDLE: c_int = 2;
const PARTITION: c_int = 3;
const VALUE: c_int = 4;
const KEY: c_int = 5;
const OPAQUE: c_int = 6;
const FLAGS: c_int = 7;
const HEADERS: c_int = 10;
const TEXT: usize = 512;

/// The libraries that this was tried with: of confluent-kafka 2.6.0 to 2.16.1.
const OLDEST: c_int = 0x02_06_00_00;
const NEWEST: c_int = 0x02_10_ff_ff;
/// Of the file when it is loaded already, and never otherwise (dlfcn.h).
const RTLD_NOLOAD: c_int = if cfg!(target_os = "macos") { 0x10 } else { 0x4 };

/// `rd_kafka_vu_t`: one argument of `rd_kafka_produceva`; its header pads the union, so that it never grows.
#[repr(C)]
pub struct Argument {
    kind: c_int,
    value: ArgumentValue,
}

#[repr(C)]
union ArgumentValue {
    pointer: *mut c_void,
    number: c_int,
    memory: Memory,
    padding: [u8; 64],
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Memory {
    start: *const c_void,
    size: usize,
}

/// `rd_kafka_message_t`, of which the library makes and frees every one.
#[repr(C)]
pub struct Message {
    pub error: c_int,
    topic: *mut c_void,
    partition: i32,
    payload: *mut c_void,
    length: usize,
    key: *mut c_void,
    key_length: usize,
    offset: i64,
    pub opaque: *mut c_void,
}

/// What C's compiler makes of the two on the machines that a wheel of the client exists for, all of 64 bits.
const _: () = {
    assert!(size_of::<usize>() == 8 && size_of::<c_int>() == 4);
    assert!(size_of::<Argument>() == 72 && align_of::<Argument>() == 8 && offset_of!(Argument, value) == 8);
    assert!(size_of::<Message>() == 72 && offset_of!(Message, payload) == 24 && offset_of!(Message, key) == 40);
    assert!(offset_of!(Message, offset) == 56 && offset_of!(Message, opaque) == 64);
};

/// Declares the functions of librdkafka that are called, and finds them in the library.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        #[allow(non_snake_case)]
        pub struct Functions { $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* _library: Library }

        impl Functions {
            fn find(library: Library) -> std::result::Result<Self, libloading::Error> {
                // SAFETY: the types are those of rdkafka.h, and the library is kept as long as its functions.
                unsafe {
                    Ok(Functions { $($name: *library.get(concat!("rd_kafka_", stringify!($name), "\0").as_bytes())?,)*
                        _library: library })
                }
            }
        }
    };
}

functions! {
    conf_new: fn() -> *mut c_void;
    conf_destroy: fn(*mut c_void);
    conf_set: fn(*mut c_void, *const c_char, *const c_char, *mut c_char, usize) -> c_int;
    conf_set_events: fn(*mut c_void, c_int);
    new: fn(c_int, *mut c_void, *mut c_char, usize) -> *mut c_void;
    destroy: fn(*mut c_void);
    set_log_queue: fn(*mut c_void, *mut c_void) -> c_int;
    queue_get_main: fn(*mut c_void) -> *mut c_void;
    queue_destroy: fn(*mut c_void);
    queue_poll: fn(*mut c_void, c_int) -> *mut c_void;
    event_type: fn(*const c_void) -> c_int;
    event_destroy: fn(*mut c_void);
    event_message_array: fn(*mut c_void, *mut *const Message, usize) -> usize;
    event_log: fn(*mut c_void, *mut *const c_char, *mut *const c_char, *mut c_int) -> c_int;
    topic_new: fn(*mut c_void, *const c_char, *mut c_void) -> *mut c_void;
    topic_name: fn(*const c_void) -> *const c_char;
    topic_destroy: fn(*mut c_void);
    headers_new: fn(usize) -> *mut c_void;
    headers_destroy: fn(*mut c_void);
    header_add: fn(*mut c_void, *const c_char, isize, *const c_void, isize) -> c_int;
    header_get_last: fn(*const c_void, *const c_char, *mut *const c_void, *mut usize) -> c_int;
    message_headers: fn(*const Message, *mut *mut c_void) -> c_int;
    produceva: fn(*mut c_void, *const Argument, usize) -> *mut c_void;
    init_transactions: fn(*mut c_void, c_int) -> *mut c_void;
    begin_transaction: fn(*mut c_void) -> *mut c_void;
    commit_transaction: fn(*mut c_void, c_int) -> *mut c_void;
    abort_transaction: fn(*mut c_void, c_int) -> *mut c_void;
    error_code: fn(*const c_void) -> c_int;
    error_string: fn(*const c_void) -> *const c_char;
    error_is_fatal: fn(*const c_void) -> c_int;
    error_is_retriable: fn(*const c_void) -> c_int;
    error_txn_requires_abort: fn(*const c_void) -> c_int;
    error_destroy: fn(*mut c_void);
    flush: fn(*mut c_void, c_int) -> c_int;
    purge: fn(*mut c_void, c_int) -> c_int;
    outq_len: fn(*mut c_void) -> c_int;
}

/// An error of a transaction, as `KafkaError` of Python's client takes it: code, text, and whether it is fatal, may be
/// tried again, and asks for an abort.
pub type Failure = (i32, String, bool, bool, bool);

/// The files whose layouts were proved in this process.
static PROVED: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

impl Functions {
    /// Take the library at `path`, which is loaded, of a version that is known, and shown to have our layouts.
    pub fn load(path: &str) -> Result<Self, String> {
        // SAFETY: with RTLD_NOLOAD nothing is loaded and no constructor runs; it only counts one user more.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) };
        let library = library.map_err(|_| format!("{path} is not loaded"))?;
        // SAFETY: `int rd_kafka_version(void)`, since the first release of the library.
        let version =
            unsafe { library.get::<unsafe extern "C" fn() -> c_int>(b"rd_kafka_version\0").map(|version| version()) };
        let version = version.map_err(|error| error.to_string())?;
        if !(OLDEST..=NEWEST).contains(&version) {
            return Err(format!("version {version:#010x} of librdkafka is not known"));
        }
        let functions = Functions::find(library).map_err(|error| error.to_string())?;
        let mut proved = PROVED.lock().map_err(|error| error.to_string())?;
        if !proved.contains(path) {
            functions.prove()?;
            proved.insert(path.to_owned());
        }
        Ok(functions)
    }

    /// Make a producer, with what is needed to take its delivery reports.
    pub fn open(&self, settings: &[(String, String)]) -> Result<*mut c_void, String> {
        let mut text = [0 as c_char; TEXT];
        // SAFETY: a configuration belongs to us until `new` takes it, which it does when it succeeds; texts are
        // null-terminated and live during the calls; the buffer has the size that is given.
        unsafe {
            let conf = (self.conf_new)();
            for (name, value) in settings {
                let set =
                    c_string(name).and_then(|name| Ok((name, c_string(value)?))).and_then(|(name, value)| match (self
                        .conf_set)(
                        conf,
                        name.as_ptr(),
                        value.as_ptr(),
                        text.as_mut_ptr(),
                        TEXT,
                    ) {
                        CONF_OK => Ok(()),
                        _ => Err(text_of(text.as_ptr())),
                    });
                if let Err(error) = set {
                    (self.conf_destroy)(conf);
                    return Err(error);
                }
            }
            (self.conf_set_events)(conf, EVENT_DELIVERY | EVENT_LOG);
            let producer = (self.new)(PRODUCER, conf, text.as_mut_ptr(), TEXT);
            if producer.is_null() {
                (self.conf_destroy)(conf);
                return Err(text_of(text.as_ptr()));
            }
            Ok(producer)
        }
    }

    /// Take what a step of a transaction gave: nothing, or its error, which is given back to the library.
    ///
    /// # Safety
    /// The error is null, or of this library and the caller's.
    pub unsafe fn failure(&self, error: *mut c_void) -> Option<Failure> {
        if error.is_null() {
            return None;
        }
        // SAFETY: as above; its text lives as long as the error.
        unsafe {
            let failure = (
                (self.error_code)(error),
                text_of((self.error_string)(error)),
                (self.error_is_fatal)(error) != 0,
                (self.error_is_retriable)(error) != 0,
                (self.error_txn_requires_abort)(error) != 0,
            );
            (self.error_destroy)(error);
            Some(failure)
        }
    }

    /// Hand over one record; give the code of the error, 0 when it was taken. The headers are gone in either case.
    ///
    /// # Safety
    /// Producer, topic and headers are of this library and alive, the topic is the producer's, and the headers belong
    /// to the caller.
    pub unsafe fn produce(
        &self,
        producer: *mut c_void,
        (topic, partition): (*mut c_void, c_int),
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: *mut c_void,
        opaque: u64,
    ) -> c_int {
        let arguments = [
            Argument { kind: TOPIC_HANDLE, value: ArgumentValue { pointer: topic } },
            Argument { kind: PARTITION, value: ArgumentValue { number: partition } },
            Argument { kind: FLAGS, value: ArgumentValue { number: COPY } },
            Argument { kind: KEY, value: ArgumentValue { memory: memory(key) } },
            Argument { kind: VALUE, value: ArgumentValue { memory: memory(value) } },
            Argument { kind: OPAQUE, value: ArgumentValue { pointer: opaque as *mut c_void } },
            Argument { kind: HEADERS, value: ArgumentValue { pointer: headers } },
        ];
        // SAFETY: as above; the arguments are laid out as `rd_kafka_vu_t`, which `prove` has shown; key and value are
        // copied during the call; the opaque is never followed; the library takes the headers when it takes the record,
        // else they are still ours.
        unsafe {
            let error = (self.produceva)(producer, arguments.as_ptr(), arguments.len());
            if error.is_null() {
                return 0;
            }
            let code = (self.error_code)(error);
            (self.error_destroy)(error);
            (self.headers_destroy)(headers);
            code
        }
    }

    /// Add a header to a list.
    ///
    /// # Safety
    /// The list is of this library and belongs to the caller.
    pub unsafe fn add_header(&self, headers: *mut c_void, name: &str, value: &[u8]) {
        // SAFETY: as above; name and value are copied during the call, with the lengths that are given.
        unsafe {
            let (name, length) = (name.as_ptr().cast(), name.len() as isize);
            (self.header_add)(headers, name, length, value.as_ptr().cast(), value.len() as isize);
        }
    }

    /// Call with each message of an event of delivery reports.
    ///
    /// # Safety
    /// The event is one of delivery reports, of this library, and alive.
    pub unsafe fn messages(&self, event: *mut c_void, mut take: impl FnMut(&Message)) {
        let mut messages = [null::<Message>(); 256];
        loop {
            // SAFETY: the array has the size that is given, and as many of its pointers are set as is returned; what
            // they point to is a `rd_kafka_message_t`, as `prove` has shown, and lives as long as the event.
            unsafe {
                let count = (self.event_message_array)(event, messages.as_mut_ptr(), messages.len());
                if count == 0 {
                    return;
                }
                messages[..count.min(messages.len())].iter().for_each(|&message| take(&*message));
            }
        }
    }

    /// Hand a record to a producer that knows no broker, throw it away, and compare what is reported of it.
    fn prove(&self) -> Result<(), String> {
        const OPAQUE: u64 = 0x0123_4567_89ab_cdef;
        let (name, key, value) = ("a-topic", &b"a key"[..], &b"a value of another length"[..]);
        let producer = self.open(&[("log_level".to_owned(), "0".to_owned())])?;
        let mut alike = None;
        let topic_name = c_string(name)?;
        // SAFETY: all handles are of this library, alive, and given back once, the producer last.
        unsafe {
            let queue = (self.queue_get_main)(producer);
            let topic = (self.topic_new)(producer, topic_name.as_ptr(), null_mut());
            let headers = (self.headers_new)(1);
            self.add_header(headers, "a header", b"\0its value");
            let code = self.produce(producer, (topic, 3), Some(key), Some(value), headers, OPAQUE);
            (self.purge)(producer, PURGE_ALL);
            let event = if code == 0 { (self.queue_poll)(queue, 5_000) } else { null_mut() };
            if !event.is_null() {
                if (self.event_type)(event) == EVENT_DELIVERY {
                    self.messages(event, |message| {
                        alike = Some(
                            (message.error, message.opaque as u64) == (PURGED_FROM_QUEUE, OPAQUE)
                                && (message.length, message.key_length) == (value.len(), key.len())
                                && std::slice::from_raw_parts(message.payload.cast::<u8>(), value.len()) == value
                                && std::slice::from_raw_parts(message.key.cast::<u8>(), key.len()) == key
                                && (text_of((self.topic_name)(message.topic)).as_str(), message.partition) == (name, 3)
                                && self.has_header(message, c"a header", b"\0its value"),
                        );
                    });
                }
                (self.event_destroy)(event);
            }
            (self.topic_destroy)(topic);
            (self.queue_destroy)(queue);
            (self.destroy)(producer);
        }
        match alike {
            Some(true) => Ok(()),
            Some(false) => Err("librdkafka reports another record than it was given".to_owned()),
            None => Err("librdkafka does not report what became of a record".to_owned()),
        }
    }

    /// Whether a message has a header.
    ///
    /// # Safety
    /// The message is alive.
    unsafe fn has_header(&self, message: &Message, name: &CStr, value: &[u8]) -> bool {
        let (mut headers, mut found, mut size) = (null_mut(), null(), 0);
        // SAFETY: the places written to are ours; headers and value belong to the message.
        unsafe {
            (self.message_headers)(message, &mut headers) == 0
                && (self.header_get_last)(headers, name.as_ptr(), &mut found, &mut size) == 0
                && size == value.len()
                && std::slice::from_raw_parts(found.cast::<u8>(), size) == value
        }
    }
}

fn memory(bytes: Option<&[u8]>) -> Memory {
    match bytes {
        None => Memory { start: null(), size: 0 },
        Some(bytes) => Memory { start: bytes.as_ptr().cast(), size: bytes.len() },
    }
}

pub fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|error| error.to_string())
}

/// Copy a text of C.
///
/// # Safety
/// It is null-terminated.
pub unsafe fn text_of(text: *const c_char) -> String {
    // SAFETY: as above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
