//! The memory allocator of every program that uses this crate.
//!
//! glibc keeps what each arena ever held: a rewrite of blobs of 2 MB, through some hundred MiB of short-lived buffers, ended with 2.4
//! times what was admitted for it, and a daemon grew by a step for each thread that had its first turn. jemalloc gives back what is
//! free, and what is measured is what is in use (invariant `memory_admitted`).

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
