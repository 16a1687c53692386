//! The tokens of an entry: the store's own number in the high bits, and in the low ones room for those
//! whom its lock is handed to inside a process.

use std::num::NonZeroU32;

use crate::{Token, TokenRange};

/// The tokens of a grant: as many as are wanted, and no more than `bits` tell apart.
pub(super) fn range(first: Token, wanted: NonZeroU32, bits: u32) -> TokenRange {
    let most = NonZeroU32::new(1 << bits).unwrap_or(NonZeroU32::MIN);
    TokenRange::new(first, wanted.min(most)).unwrap_or(TokenRange::one(first))
}

/// Whether a token is one of the entry's with this first token, whoever had it.
pub(super) fn is_of(token: Token, first: Token, bits: u32) -> bool {
    token.get() >> bits == first.get() >> bits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn last(range: TokenRange) -> Token {
        Token::new(range.first().get() + u64::from(range.len().get()) - 1).unwrap()
    }

    proptest! {
        /// By the store's numbers of two entries, how many tokens each is asked for, and which of them
        /// is looked at.
        #[test]
        fn tokens_of_two_entries_rise_and_are_told_apart(
            bits in prop_oneof![Just(10u32), Just(16)],
            numbers in (1u64..1 << 47, 1u64..1000),
            wanted in (1u32.., 1u32..),
            at in any::<u32>(),
        ) {
            let (earlier, later) = (numbers.0, numbers.0.saturating_add(numbers.1).min((1 << 47) - 1));
            prop_assume!(earlier < later);
            let of = |number: u64, wanted: u32| {
                range(Token::new(number << bits).unwrap(), NonZeroU32::new(wanted).unwrap(), bits)
            };
            let (a, b) = (of(earlier, wanted.0), of(later, wanted.1));
            prop_assert!(last(a) < b.first(), "{a:?} {b:?}");
            prop_assert!(a.len().get() <= wanted.0 && a.len().get() <= 1 << bits);
            for one in [a.first(), last(a), Token::new(a.first().get() + u64::from(at % a.len())).unwrap()] {
                prop_assert!(a.contains(one) && is_of(one, a.first(), bits));
                prop_assert!(!is_of(one, b.first(), bits), "{one} of a later entry");
            }
            prop_assert!(!is_of(b.first(), a.first(), bits) && !is_of(last(b), a.first(), bits));
        }
    }

    #[test]
    fn a_store_without_room_in_its_tokens_gives_one() {
        let all = NonZeroU32::MAX;
        assert_eq!(range(Token::new(7).unwrap(), all, 0), TokenRange::one(Token::new(7).unwrap()));
        assert_eq!(range(Token::MAX, all, 16), TokenRange::one(Token::MAX));
        assert!(!is_of(Token::new(8).unwrap(), Token::new(7).unwrap(), 0));
    }
}
