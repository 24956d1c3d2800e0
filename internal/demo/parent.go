package main

import (
	"context"
	"os"
	"time"
)

// untilParentEnds is a context that ends also when the program that started
// this one is gone: a `make` that was killed passes nothing on.
func untilParentEnds(ctx context.Context) (context.Context, context.CancelFunc) {
	parent := os.Getppid()
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if os.Getppid() != parent {
					cancel()
					return
				}
			}
		}
	}()
	return ctx, cancel
}
