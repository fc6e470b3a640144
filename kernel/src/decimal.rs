//! Decimal128 as text, as Python's `decimal` writes it.

use crate::error::{Error, Result};
use crate::text;

const EXPONENT_BIAS: i64 = 6176;
const LARGEST: u128 = 10_u128.pow(34) - 1;

/// Write a finite decimal in its canonical form.
pub fn write(out: &mut Vec<u8>, value: &[u8]) -> Result<()> {
    let (is_negative, coefficient, exponent) = parts(value)?;
    if is_negative {
        out.push(b'-');
    }
    scientific(out, coefficient.to_string().as_bytes(), exponent);
    Ok(())
}

/// Give sign, coefficient and exponent of a finite decimal; what else the bytes may be is left to the reference.
pub fn parts(value: &[u8]) -> Result<(bool, u128, i64)> {
    let bytes: [u8; 16] = value.try_into().map_err(|_| Error::Declined("a decimal has not 16 bytes"))?;
    let bits = u128::from_le_bytes(bytes);
    let high = (bits >> 64) as u64;
    if high & 0x6000_0000_0000_0000 == 0x6000_0000_0000_0000 {
        return Err(Error::Declined("a decimal is not finite, or in a form that nobody writes"));
    }
    let exponent = ((high & 0x7FFF_8000_0000_0000) >> 49) as i64 - EXPONENT_BIAS;
    let coefficient = bits & ((1 << 113) - 1);
    if coefficient > LARGEST {
        return Err(Error::Declined("a decimal has too many digits"));
    }
    Ok((high >> 63 == 1, coefficient, exponent))
}

/// The conversion to a scientific string of the General Decimal Arithmetic specification.
fn scientific(out: &mut Vec<u8>, digits: &[u8], exponent: i64) {
    let adjusted = exponent + digits.len() as i64 - 1;
    if exponent == 0 {
        out.extend_from_slice(digits);
    } else if exponent < 0 && adjusted >= -6 {
        let point = digits.len() as i64 + exponent;
        if point > 0 {
            let (whole, fraction) = digits.split_at(point as usize);
            out.extend_from_slice(whole);
            out.push(b'.');
            out.extend_from_slice(fraction);
        } else {
            out.extend_from_slice(b"0.");
            out.extend(std::iter::repeat_n(b'0', -point as usize));
            out.extend_from_slice(digits);
        }
    } else {
        out.push(digits[0]);
        if digits.len() > 1 {
            out.push(b'.');
            out.extend_from_slice(&digits[1..]);
        }
        out.push(b'E');
        if adjusted >= 0 {
            out.push(b'+');
        }
        text::integer(out, adjusted);
    }
}
