//! Flat records: a few chosen fields (`tailrace.capture.formats.flat`).

use crate::bson::{self, elements, find};
use crate::error::{Error, Result};
use crate::event::{Event, Value};
use crate::keys::at_path;
use crate::spelling::{Names, Writer};
use crate::styles::{Plain, Silent};
use crate::text;

/// Write the value of an event.
pub fn write(event: &Event<'_>, fields: &[String], out: &mut Vec<u8>, names: &mut Names) -> Result<()> {
    let begin = out.len();
    Writer { style: Silent, out, names }.document(event.raw)?;
    out.truncate(begin);
    let (image, fields) = chosen_fields(event, fields)?;

    let mut writer = Writer { style: Plain, out, names };
    member(&mut writer, b"{\"op\":");
    text::quoted(writer.out, event.op_code().unwrap_or(event.operation).as_bytes());
    member(&mut writer, b",\"ns\":\"");
    text::escaped(writer.out, event.database.unwrap_or("").as_bytes());
    if let Some(collection) = event.collection {
        writer.out.push(b'.');
        text::escaped(writer.out, collection.as_bytes());
    }
    member(&mut writer, b"\",\"key\":");
    let id = match event.key {
        Some((bson::DOCUMENT, key)) => find(key, b"_id")?,
        Some(_) => return Err(Error::Declined("the documentKey is not a document")),
        None => None,
    };
    let (kind, value) = id.map_or((bson::NULL, &[][..]), |element| (element.kind, element.value));
    writer.value(kind, value)?;
    member(&mut writer, b",\"cluster_time\":");
    text::natural(writer.out, event.token_time);
    member(&mut writer, b",\"ts_ms\":");
    text::integer(writer.out, event.wall_ms()?.unwrap_or((event.token_time >> 32) as i64 * 1000));
    member(&mut writer, b",\"image\":");
    text::quoted(writer.out, image.as_bytes());
    for (path, value) in fields {
        writer.out.push(b',');
        writer.name(path.as_bytes())?;
        let (kind, value) = value.unwrap_or((bson::NULL, &[]));
        writer.value(kind, value)?;
    }
    writer.out.push(b'}');
    Ok(())
}

fn member(writer: &mut Writer<'_, Plain>, text: &[u8]) {
    writer.out.extend_from_slice(text);
}

type Fields<'f, 'e> = Vec<(&'f str, Option<Value<'e>>)>;

/// Give the chosen fields that an event tells, and what they are of; a field that is not there is null.
fn chosen_fields<'f, 'e>(event: &Event<'e>, fields: &'f [String]) -> Result<(&'static str, Fields<'f, 'e>)> {
    let chosen = |document| -> Result<Fields<'f, 'e>> {
        fields.iter().map(|path| Ok((path.as_str(), at_path(document, path, false)?))).collect()
    };
    match (event.full_document, event.update, event.before) {
        (Some((bson::DOCUMENT, document)), _, _) => Ok(("full", chosen(document)?)),
        (None | Some((bson::NULL, _)), Some((bson::DOCUMENT, update)), _) => Ok(("delta", changed(update, fields)?)),
        (None | Some((bson::NULL, _)), None, Some((bson::DOCUMENT, before))) => Ok(("before", chosen(before)?)),
        (None | Some((bson::NULL, _)), None, None | Some((bson::NULL, _))) => Ok(("none", Vec::new())),
        _ => Err(Error::Declined("a field of the event is not a document")),
    }
}

/// Give the chosen fields that an update touched, as far as its description tells their new values.
fn changed<'f, 'e>(update: &'e [u8], fields: &'f [String]) -> Result<Fields<'f, 'e>> {
    let updated = match find(update, b"updatedFields")? {
        None => None,
        Some(element) if element.kind == bson::DOCUMENT => Some(element.value),
        Some(_) => return Err(Error::Declined("updatedFields is not a document")),
    };
    let removed = removed_fields(update)?;
    let mut touched = Fields::new();
    for path in fields {
        let mut found = None;
        for end in path.match_indices('.').map(|(place, _)| place).chain([path.len()]) {
            let parent = &path[..end];
            if removed.contains(&parent.as_bytes()) {
                found = Some(None);
            } else if let Some(element) = updated.map(|updated| find(updated, parent.as_bytes())).transpose()?.flatten()
            {
                let value = (element.kind, element.value);
                found = Some(match path.get(end + 1..) {
                    None | Some("") => Some(value),
                    Some(rest) if value.0 == bson::DOCUMENT => at_path(value.1, rest, false)?,
                    Some(_) => None,
                });
            }
        }
        if let Some(value) = found {
            touched.push((path, value));
        }
    }
    Ok(touched)
}

fn removed_fields(update: &[u8]) -> Result<Vec<&[u8]>> {
    match find(update, b"removedFields")? {
        None => Ok(Vec::new()),
        Some(element) if element.kind == bson::ARRAY => elements(element.value)?
            .map(|element| match element? {
                element if element.kind == bson::STRING => bson::string(element.value),
                _ => Err(Error::Declined("the name of a removed field is not a text")),
            })
            .collect(),
        Some(_) => Err(Error::Declined("removedFields is not an array")),
    }
}
