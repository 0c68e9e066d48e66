//! Numbers with units.

/// A message size: 64 B, 4 KiB, 1 MiB.
pub fn size(bytes: u64) -> String {
    for (unit, factor) in [("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{} {unit}", bytes / factor);
        }
    }
    format!("{} B", thousands(bytes))
}

/// 16,384.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three significant digits without an exponent.
pub fn three_digits(value: f64) -> String {
    if value.abs() >= 1000.0 {
        return thousands(value.round() as u64);
    }
    let digits = match value.abs() {
        value if value < 1.0 => 3,
        value if value < 10.0 => 2,
        value if value < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_or_bytes() {
        assert_eq!(size(64), "64 B");
        assert_eq!(size(30_000), "30,000 B");
        assert_eq!(size(65_536), "64 KiB");
        assert_eq!(size(1 << 20), "1 MiB");
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(three_digits(0.0421), "0.042");
        assert_eq!(three_digits(9.126), "9.13");
        assert_eq!(three_digits(123.4), "123");
        assert_eq!(three_digits(24_792.0), "24,792");
    }
}
