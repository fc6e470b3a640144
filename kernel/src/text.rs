//! Pieces of text: strings of JSON, numbers, dates, base64, hexadecimal digits.

use crate::error::{Error, Result};

const PLAIN: u8 = 0;
/// What stands behind the backslash of an escaped byte; `u` is four hexadecimal digits.
static ESCAPES: [u8; 256] = {
    let mut table = [PLAIN; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = b'u';
        byte += 1;
    }
    table[0x08] = b'b';
    table[0x09] = b't';
    table[0x0A] = b'n';
    table[0x0C] = b'f';
    table[0x0D] = b'r';
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table
};
const HEX: &[u8; 16] = b"0123456789abcdef";
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Give text as UTF-8; what is not is left to the reference.
pub fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| Error::Declined("a text is not UTF-8"))
}

/// Write the inside of a string of JSON, as orjson does: only quotes, backslashes and control characters are escaped.
pub fn escaped(out: &mut Vec<u8>, text: &[u8]) {
    let mut written = 0;
    for (number, chunk) in text.chunks(8).enumerate() {
        if chunk.first_chunk().is_some_and(|word| !has_special(*word)) {
            continue;
        }
        out.extend_from_slice(&text[written..number * 8]);
        for &byte in chunk {
            match ESCAPES[byte as usize] {
                PLAIN => out.push(byte),
                b'u' => {
                    out.extend_from_slice(b"\\u00");
                    out.extend_from_slice(&hex_byte(byte));
                }
                letter => out.extend_from_slice(&[b'\\', letter]),
            }
        }
        written = number * 8 + chunk.len();
    }
    out.extend_from_slice(&text[written..]);
}

/// Whether one of eight bytes has to be escaped; it may say so of others, never the other way round.
fn has_special(bytes: [u8; 8]) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let word = u64::from_le_bytes(bytes);
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    let found = (word.wrapping_sub(ONES * 0x20) & !word)
        | (quote.wrapping_sub(ONES) & !quote)
        | (backslash.wrapping_sub(ONES) & !backslash);
    found & HIGH != 0
}

/// Whether a text is printable ASCII without quotes and backslashes, which every spelling writes as it is.
pub fn is_plain(text: &[u8]) -> bool {
    match (text.first_chunk::<8>(), text.last_chunk::<8>()) {
        (Some(_), Some(last)) => {
            text.chunks_exact(8).all(|chunk| chunk.first_chunk().is_some_and(|word| are_plain(*word)))
                && are_plain(*last)
        }
        _ => text.iter().all(|&byte| (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\'),
    }
}

fn are_plain(bytes: [u8; 8]) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let word = u64::from_le_bytes(bytes);
    let quote = word ^ (ONES * b'"' as u64);
    let backslash = word ^ (ONES * b'\\' as u64);
    let found = (word.wrapping_sub(ONES * 0x20) & !word)
        | (quote.wrapping_sub(ONES) & !quote)
        | (backslash.wrapping_sub(ONES) & !backslash)
        | word.wrapping_add(ONES) // from 0x7f on
        | word;
    found & HIGH == 0
}

pub fn quoted(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    escaped(out, text);
    out.push(b'"');
}

pub fn hex_byte(byte: u8) -> [u8; 2] {
    [HEX[(byte >> 4) as usize], HEX[(byte & 15) as usize]]
}

pub fn hex(out: &mut Vec<u8>, bytes: &[u8]) {
    let begin = out.len();
    out.resize(begin + 2 * bytes.len(), 0);
    for (pair, &byte) in out[begin..].chunks_exact_mut(2).zip(bytes) {
        pair.copy_from_slice(&hex_byte(byte));
    }
}

pub fn base64(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.chunks(3) {
        let word =
            (chunk[0] as u32) << 16 | (*chunk.get(1).unwrap_or(&0) as u32) << 8 | *chunk.get(2).unwrap_or(&0) as u32;
        let digit = |shift: u32| BASE64[(word >> shift & 63) as usize];
        let third = if chunk.len() > 1 { digit(6) } else { b'=' };
        let fourth = if chunk.len() > 2 { digit(0) } else { b'=' };
        out.extend_from_slice(&[digit(18), digit(12), third, fourth]);
    }
}

/// Write an integer in decimal digits.
pub fn integer(out: &mut Vec<u8>, number: i64) {
    if number < 0 {
        out.push(b'-');
    }
    natural(out, number.unsigned_abs());
}

pub fn natural(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0_u8; 20];
    let mut place = digits.len();
    loop {
        place -= 1;
        digits[place] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[place..]);
}

fn padded<const WIDTH: usize>(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0; WIDTH];
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    out.extend_from_slice(&digits);
}

/// The last millisecond of the year 9999.
pub const LAST_YEAR_MS: i64 = 253_402_300_799_999;
/// The first millisecond of the year 1.
pub const FIRST_YEAR_MS: i64 = -62_135_596_800_000;

/// Write a date of the years 1 to 9999 as ISO 8601, up to the second; give its milliseconds.
pub fn date_to_second(out: &mut Vec<u8>, milliseconds: i64) -> u64 {
    let seconds = milliseconds.div_euclid(1000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400) as u64);
    // Days since 0000-03-01, in cycles of 400 years.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    padded::<4>(out, year as u64);
    out.push(b'-');
    padded::<2>(out, month as u64);
    out.push(b'-');
    padded::<2>(out, day as u64);
    out.push(b'T');
    padded::<2>(out, second / 3600);
    out.push(b':');
    padded::<2>(out, second / 60 % 60);
    out.push(b':');
    padded::<2>(out, second % 60);
    milliseconds.rem_euclid(1000) as u64
}

/// Whether a date is in the years 1 to 9999.
pub fn has_text(milliseconds: i64) -> bool {
    (FIRST_YEAR_MS..=LAST_YEAR_MS).contains(&milliseconds)
}

/// Write a date of the years 1 to 9999 as ISO 8601, with milliseconds where it has some.
pub fn date(out: &mut Vec<u8>, milliseconds: i64) {
    let rest = date_to_second(out, milliseconds);
    if rest != 0 {
        out.push(b'.');
        padded::<3>(out, rest);
    }
    out.push(b'Z');
}

/// Write a finite double as orjson does.
pub fn double(out: &mut Vec<u8>, number: f64) {
    let mut buffer = ryu::Buffer::new();
    let text = buffer.format_finite(number);
    match text.split_once('e') {
        Some((mantissa, exponent)) if !exponent.starts_with('-') => {
            out.extend_from_slice(mantissa.as_bytes());
            out.extend_from_slice(b"e+");
            out.extend_from_slice(exponent.as_bytes());
        }
        _ => out.extend_from_slice(text.as_bytes()),
    }
}

/// Write a finite double as Python's `repr` does.
pub fn double_repr(out: &mut Vec<u8>, number: f64) {
    let mut buffer = ryu::Buffer::new();
    let text = buffer.format_finite(number);
    if let Some((mantissa, exponent)) = text.split_once('e') {
        let (sign, digits) = match exponent.strip_prefix('-') {
            Some(digits) => (b'-', digits),
            None => (b'+', exponent),
        };
        out.extend_from_slice(mantissa.as_bytes());
        out.extend_from_slice(&[b'e', sign]);
        if digits.len() < 2 {
            out.push(b'0');
        }
        out.extend_from_slice(digits.as_bytes());
        return;
    }
    let (sign, digits) = if number.is_sign_negative() { ("-", &text[1..]) } else { ("", text) };
    match digits.strip_prefix("0.0000") {
        // Below 0.0001 there is an exponent; `0.00001` is the smallest that comes here.
        Some(digits) => {
            out.extend_from_slice(sign.as_bytes());
            out.extend_from_slice(&digits.as_bytes()[..1]);
            if digits.len() > 1 {
                out.push(b'.');
                out.extend_from_slice(&digits.as_bytes()[1..]);
            }
            out.extend_from_slice(b"e-05");
        }
        None => out.extend_from_slice(text.as_bytes()),
    }
}

/// Write a finite double as Java 19 and later do: at least two digits; an exponent outside 1e-3 to 1e7.
pub fn double_java(out: &mut Vec<u8>, number: f64) {
    let size = number.abs();
    let mut buffer = ryu::Buffer::new();
    let text = buffer.format_finite(number);
    if size == 0.0 || (1e-3..1e7).contains(&size) {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    let mantissa = text.split_once('e').map_or(text, |(mantissa, _)| mantissa);
    let significant = mantissa.trim_start_matches(['-', '0', '.']).trim_end_matches(['0', '.']);
    let digits = significant.bytes().filter(u8::is_ascii_digit).count();
    for precision in digits.saturating_sub(1).clamp(1, 16)..=16 {
        let text = format!("{number:.precision$e}");
        if precision == 16 || text.parse::<f64>() == Ok(number) {
            out.extend_from_slice(text.replace('e', "E").as_bytes());
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn doubles_have_the_text_of_each_spelling() {
        for (number, orjson, repr, java) in [
            (1e16, "1e+16", "1e+16", "1.0E16"),
            (1e-5, "0.00001", "1e-05", "1.0E-5"),
            (-1.25e-5, "-0.0000125", "-1.25e-05", "-1.25E-5"),
            (5e-324, "5e-324", "5e-324", "4.9E-324"),
            (-0.0, "-0.0", "-0.0", "-0.0"),
            (0.1, "0.1", "0.1", "0.1"),
            (12345678.9, "12345678.9", "12345678.9", "1.23456789E7"),
            (1e22, "1e+22", "1e+22", "1.0E22"),
            (120000000.0, "120000000.0", "120000000.0", "1.2E8"),
        ] {
            assert_eq!(made(|out| double(out, number)), orjson);
            assert_eq!(made(|out| double_repr(out, number)), repr);
            assert_eq!(made(|out| double_java(out, number)), java);
        }
    }

    #[test]
    fn dates_are_iso() {
        assert_eq!(made(|out| date(out, 0)), "1970-01-01T00:00:00Z");
        assert_eq!(made(|out| date(out, LAST_YEAR_MS)), "9999-12-31T23:59:59.999Z");
        assert_eq!(made(|out| date(out, FIRST_YEAR_MS)), "0001-01-01T00:00:00Z");
        assert_eq!(made(|out| date(out, 951_782_400_007)), "2000-02-29T00:00:00.007Z");
    }

    #[test]
    fn plain_texts_have_no_byte_that_a_spelling_changes() {
        for length in 0..20 {
            for place in 0..length {
                for byte in 0..=255_u8 {
                    let mut text = vec![b'x'; length];
                    text[place] = byte;
                    let wanted = matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
                    assert_eq!(is_plain(&text), wanted, "{byte} at {place} of {length}");
                }
            }
        }
    }

    #[test]
    fn special_bytes_are_escaped_wherever_they_stand() {
        for place in 0..20 {
            let mut text = vec![b'x'; 20];
            text[place] = b'"';
            let mut wanted = vec![b'x'; 20];
            wanted.splice(place..=place, *b"\\\"");
            assert_eq!(made(|out| escaped(out, &text)).into_bytes(), wanted);
        }
        assert_eq!(made(|out| escaped(out, b"\0\x1f\x7f\n\\")), "\\u0000\\u001f\x7f\\n\\\\");
    }
}
