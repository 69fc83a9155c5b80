//! The fleet under test: replicas of the real daemon on a real NATS server and a real S3 server, each test with a server, a
//! registry and an estate of its own. What disturbs a replica stands outside of it: a signal, or the proxy before its storage.

// The longest; tests start in the order of their names.
mod an_estate;
mod beside_a_build;
mod bus;
mod clock;
mod cluster;
mod control;
mod crash;
mod faults;
mod fleet;
mod kill_switch;
mod many;
mod neighbours;
mod replica;
mod required;
mod rolling_upgrade;
mod slices;
mod stamps;
mod told;
mod verdicts;
