//! Writes BSON documents one behind the other into one buffer.

/// A buffer of documents; the length of each is filled in when it is closed.
#[derive(Default)]
pub struct Writer {
    pub bytes: Vec<u8>,
}

impl Writer {
    /// Begin a document; give what `close` takes.
    pub fn open(&mut self) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        start
    }

    /// Begin an element that is a document.
    pub fn open_document(&mut self, name: &[u8]) -> usize {
        self.head(crate::bson::DOCUMENT, name);
        self.open()
    }

    /// End the document that began at `start`.
    pub fn close_document(&mut self, start: usize) {
        self.bytes.push(0);
        let size = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&size.to_le_bytes());
    }

    /// Add bytes that are elements already.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub fn head(&mut self, kind: u8, name: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
    }

    pub fn element(&mut self, kind: u8, name: &[u8], value: &[u8]) {
        self.head(kind, name);
        self.bytes.extend_from_slice(value);
    }

    /// Add a document or array made of elements.
    pub fn document_of(&mut self, kind: u8, name: &[u8], elements: &[u8]) {
        self.head(kind, name);
        self.bytes.extend_from_slice(&(elements.len() as u32 + 5).to_le_bytes());
        self.bytes.extend_from_slice(elements);
        self.bytes.push(0);
    }

    /// Forget everything from an offset on.
    pub fn truncate(&mut self, to: usize) {
        self.bytes.truncate(to);
    }
}
