//! Buffers that are used again: memory that is new costs a page fault for every 4 KB, and is in no cache.

use std::sync::{Mutex, PoisonError};

/// How many bytes wait to be used again, at most.
const MOST: usize = 8 << 20;

/// Empty buffers; the one that was used last is taken first.
#[derive(Default)]
pub struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    pub fn take(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    pub fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: usize = waiting.iter().map(Vec::capacity).sum();
        if buffer.capacity() > 0 && bytes + buffer.capacity() <= MOST {
            waiting.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded() {
        let buffers = Buffers::default();
        for _ in 0..10 {
            buffers.give_back(Vec::with_capacity(MOST / 4));
        }
        assert_eq!(buffers.0.lock().unwrap().len(), 4);
        assert_eq!(buffers.take().capacity(), MOST / 4);
        buffers.give_back(Vec::with_capacity(MOST));
        buffers.give_back(Vec::new());
        assert_eq!(buffers.0.lock().unwrap().len(), 3);
    }
}
