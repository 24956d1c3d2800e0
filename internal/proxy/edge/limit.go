package edge

import (
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// readRate reads the events and the window of a limit, or for limits InFlight how many requests may run at once.
func readRate(to *Settings, text string) error {
	l := &to.Limit.Limit
	if l.Algorithm != ratelimit.InFlight {
		rate, err := ratelimit.ParseRate(text)
		l.Events, l.Window, l.Calendar, l.Zone = rate.Events, rate.Window, rate.Calendar, rate.Zone
		return err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return &ratelimit.FieldError{Value: text, Want: "how many requests may run at once, such as 5, for in_flight"}
	}
	l.Events = n
	return nil
}

// readBurst reads the burst of a token bucket or of GCRA.
func readBurst(to *Settings, text string) error {
	if text == "" {
		return nil
	}
	burst, err := readEvents(text)
	to.Limit.Limit.Burst = burst
	return err
}

// readEvents reads a whole number from 1 to the largest quota.
func readEvents(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || n > ratelimit.MaxEvents {
		return 0, errWant
	}
	return n, nil
}

// readLease reads the lease of a limit, such as "5%", or "off".
func readLease(to *Settings, text string) error {
	if text == "off" {
		return nil
	}
	share, err := readShare(text, ratelimit.MinLease, ratelimit.MaxLease)
	to.Limit.Limit.Lease = share
	return err
}

// leastLeaseWindow is the shortest window of a limit with leases, see package lease.
const leastLeaseWindow = 200 * time.Millisecond

// Warning is what an operator should know of a valid setting.
type Warning struct {
	Field string // the setting's name
	Text  string // the rest of the sentence
}

// Warnings are what an operator should know of a valid limit. cost is 0 if each request
// gives its own.
func Warnings(l *ratelimit.Limit, cost int64) []Warning {
	var warnings []Warning
	if l.SynchronousCommit && !l.Durable {
		warnings = append(warnings, Warning{"synchronous_commit", "does nothing for a limit that is not durable"})
	}
	if l.Lease > 0 && l.RefillsEvenly() {
		warnings = append(warnings, Warning{"lease", "does nothing for a token_bucket with a burst below its events"})
	}
	if l.Lease > 0 && l.Window < leastLeaseWindow {
		warnings = append(warnings, Warning{"lease", "does nothing for a window below " + leastLeaseWindow.String()})
	}
	if cost > l.Capacity() {
		warnings = append(warnings, Warning{"cost", "is above the whole quota: no request passes"})
	}
	return warnings
}
