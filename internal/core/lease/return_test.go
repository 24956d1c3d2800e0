package lease_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// twoEnded is a set in which the leases of the keys a and b have ended, that of b 50 ms later.
// now is its clock.
func twoEnded(t *testing.T, now *int64) *lease.Set {
	t.Helper()
	leases := lease.New(lease.Options{Max: 10, Horizon: time.Second, Clock: func() int64 { return *now }})
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 1000, Window: time.Minute, Lease: 0.5}
	charge := func(key string, ends int64) {
		hit := []ratelimit.Hit{{Limit: l, Key: key, Cost: 1}}
		answer := lease.Answer{Row: lease.RowID{Prefix: "p", Key: key}, Limit: l, Free: 900}
		for range 5 {
			lease.Take(leases, hit, make([]ratelimit.Decision, 1))
			lease.Update(leases, &answer)
		}
		*now += 100000 // charges are gathered
		asks, _ := lease.Work(leases, false)
		if len(asks) != 1 {
			t.Fatalf("%d leases are asked for", len(asks))
		}
		answer.Ask = &asks[0]
		answer.Leased = lease.Units{N: asks[0].N, Ends: ends, Claim: 1}
		lease.Update(leases, &answer)
	}
	charge("a", 1500000)
	charge("b", 1550000)
	*now = 1500000
	lease.Sweep(leases) // ends a
	*now = 1550000
	lease.Sweep(leases)
	if lease.Total(leases) != 0 {
		t.Fatal("units are held")
	}
	return leases
}

// returned is the keys of which a batch would give units back now.
func returned(leases *lease.Set) string {
	keys := ""
	_, returns := lease.Work(leases, false)
	for _, r := range returns {
		keys += r.Row.Key
	}
	return keys
}

func TestUnitsThatEndAreGivenBackTogether(t *testing.T) {
	now := int64(1)
	leases := twoEnded(t, &now)
	if keys := returned(leases); keys != "" || lease.Due(leases) || !lease.Any(leases) {
		t.Errorf("after 50 ms, units of %q are given back", keys)
	}
	now += 50000
	if !lease.Due(leases) {
		t.Error("after 100 ms, nothing is due")
	}
	if keys := returned(leases); keys != "ab" {
		t.Errorf("after 100 ms, units of %q are given back, want ab", keys)
	}
	if lease.Due(leases) {
		t.Error("something is due when all is given back")
	}
}

func TestARefundHasUnitsGivenBackBeforeIt(t *testing.T) {
	now := int64(1)
	leases := twoEnded(t, &now)
	lease.Drop(leases, lease.RowID{Prefix: "p", Key: "other"}, true)
	if keys := returned(leases); keys != "" {
		t.Errorf("a refund on another row has units of %q given back", keys)
	}
	lease.Drop(leases, lease.RowID{Prefix: "p", Key: "a"}, true)
	if keys := returned(leases); keys != "ab" {
		t.Errorf("units of %q are given back, want ab", keys)
	}
}

func TestUnitsOfARowThatWasResetAreNotGivenBack(t *testing.T) {
	now := int64(1)
	leases := twoEnded(t, &now)
	lease.Drop(leases, lease.RowID{Prefix: "p", Key: "a"}, false)
	now += 50000
	if keys := returned(leases); keys != "b" {
		t.Errorf("units of %q are given back, want b", keys)
	}
}
