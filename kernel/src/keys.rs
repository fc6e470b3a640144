//! What a record's key is: the documentKey, or a field of the document (`tailrace.capture.formats.format.KeyRule`).

use crate::bson::{self, find};
use crate::error::{Error, Result};
use crate::event::{Event, Value};

/// Where the key of an event is.
pub enum Key<'e> {
    /// The chosen field.
    Field(Value<'e>),
    /// The documentKey, because no field was chosen or the event has it nowhere.
    Document(&'e [u8]),
    /// The namespace, of an event that is about no document.
    Namespace,
}

/// Look for the key; `through_arrays` lets the path of the chosen field lead through arrays.
pub fn find_key<'e>(event: &Event<'e>, field: Option<&str>, through_arrays: bool) -> Result<Key<'e>> {
    if let Some(field) = field {
        for place in [event.key, event.full_document, event.before] {
            if let Some(document) = Event::document(place)
                && let Some(found) = at_path(document, field, through_arrays)?
            {
                return Ok(Key::Field(found));
            }
        }
    }
    match event.key {
        Some((bson::DOCUMENT, key)) => Ok(Key::Document(key)),
        Some(_) => Err(Error::Declined("the documentKey is not a document")),
        None => Ok(Key::Namespace),
    }
}

/// Follow a dotted path through documents.
pub fn at_path<'e>(document: &'e [u8], path: &str, through_arrays: bool) -> Result<Option<Value<'e>>> {
    let mut value = (bson::DOCUMENT, document);
    for name in path.split('.') {
        if value.0 != bson::DOCUMENT && !(through_arrays && value.0 == bson::ARRAY) {
            return Ok(None);
        }
        match find(value.1, name.as_bytes())? {
            Some(element) => value = (element.kind, element.value),
            None => return Ok(None),
        }
    }
    Ok(Some(value))
}
