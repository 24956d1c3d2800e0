//go:build !linux

package main

// blockedSignals are the signals that a process blocks at present, as bits.
// Only Linux tells.
func blockedSignals(int) uint64 { return 0 }
