package main

import (
	"context"
	"os"
	"syscall"
	"time"
)

// untilParentEnds is a context that ends also when the program that started
// this one is gone, as a `make` that was killed, or is about to go.
func untilParentEnds(ctx context.Context) context.Context {
	parent := os.Getppid()
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		var watch signalWatch
		for {
			if os.Getppid() != parent || watch.handles(blockedSignals(parent)) {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return ctx
}

// signalWatch tells from the signals that a program blocks that it is in its
// handler of one. GNU make passes on SIGTERM alone: told to end by SIGINT or
// SIGHUP it waits, in the handler, for its child to end, since a terminal
// tells the child, too. Where no terminal does, the child has to find out.
type signalWatch struct {
	before uint64 // what the program blocked when last looked at
	free   uint64 // what it has been seen not to block
}

// endings are the signals to look for, as bits.
const endings = 1<<(syscall.SIGHUP-1) | 1<<(syscall.SIGINT-1)

// handles takes what the program blocks now. A signal that it has left free
// once and now blocks twice running is being handled: it blocks its signals
// also for the moment in which it starts a program, and may have been started
// with some blocked for good.
func (w *signalWatch) handles(blocked uint64) bool {
	w.free |= ^blocked
	handled := blocked & w.before & w.free & endings
	w.before = blocked
	return handled != 0
}
