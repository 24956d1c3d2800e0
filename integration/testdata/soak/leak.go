// Package main has this file in the Caddy of a soak that must fail.
package main

import "time"

func init() {
	go func() {
		for range time.Tick(time.Minute) {
			go leak()
		}
	}()
}

func leak() { select {} }
