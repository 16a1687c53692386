//! Which of these one needs, if any.
