//! Where the fields of an oplog entry lie; see `tailrace.oplog.entry`.

use crate::bson::{self, elements};
use crate::error::{Error, Result};

/// What the events of documents need of an entry. An entry that lacks any of it is left to the reference.
pub struct Entry<'a> {
    pub op: u8,
    pub namespace: &'a [u8],
    pub o: Option<&'a [u8]>,
    pub o2: Option<&'a [u8]>,
    pub uuid: Option<&'a [u8; 16]>,
    pub time: u64,
    pub wall: Option<&'a [u8]>,
    pub from_migrate: bool,
}

const UNUSUAL: Error = Error::Declined("an entry of another form");

impl<'a> Entry<'a> {
    /// Read the fields in whatever order they stand; one that stands there twice is unusual.
    pub fn read(entry: &'a [u8]) -> Result<Entry<'a>> {
        let (mut op, mut namespace, mut time) = (None, None, None);
        let mut found =
            Entry { op: 0, namespace: b"", o: None, o2: None, uuid: None, time: 0, wall: None, from_migrate: false };
        let mut migrate = None;
        for element in elements(entry)? {
            let element = element?;
            let value = element.value;
            match (element.name, element.kind) {
                (b"op", bson::STRING) => once(&mut op, bson::string(value)?)?,
                (b"ns", bson::STRING) => once(&mut namespace, bson::string(value)?)?,
                (b"o", bson::DOCUMENT) => once(&mut found.o, value)?,
                (b"o2", bson::DOCUMENT) => once(&mut found.o2, value)?,
                (b"ui", bson::BINARY) => once(&mut found.uuid, uuid(value)?)?,
                (b"ts", bson::TIMESTAMP) => once(&mut time, bson::timestamp(value)?)?,
                (b"wall", bson::DATE) => once(&mut found.wall, value)?,
                (b"fromMigrate", _) => once(&mut migrate, element.kind == bson::BOOL && value == [1])?,
                (b"op" | b"ns" | b"o" | b"o2" | b"ui" | b"ts" | b"wall", _) => return Err(UNUSUAL),
                _ => {}
            }
        }
        match (op, namespace, time) {
            (Some([op]), Some(namespace), Some(time)) => {
                found.op = *op;
                found.namespace = namespace;
                found.time = time;
            }
            _ => return Err(UNUSUAL),
        }
        found.from_migrate = migrate.unwrap_or(false);
        Ok(found)
    }
}

fn once<T>(field: &mut Option<T>, value: T) -> Result<()> {
    match field.replace(value) {
        None => Ok(()),
        Some(_) => Err(UNUSUAL),
    }
}

fn uuid(value: &[u8]) -> Result<&[u8; 16]> {
    match bson::binary(value)? {
        (4, payload) => payload.try_into().map_err(|_| UNUSUAL),
        _ => Err(UNUSUAL),
    }
}
