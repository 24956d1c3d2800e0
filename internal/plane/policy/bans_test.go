package policy_test

import (
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// drawAddress draws addresses. Many of them are in several of the networks.
func drawAddress(t *rapid.T) netip.Addr {
	part := func() byte { return rapid.SampledFrom([]byte{0, 0, 1, 127, 128, 255}).Draw(t, "byte") }
	four := [4]byte{part(), part(), part(), part()}
	switch rapid.IntRange(0, 3).Draw(t, "family") {
	case 0:
		low := part() // often all bits or none, as at the ends of a network
		return netip.AddrFrom16([16]byte{part(), 0, 0, 0, 0, 0, 0, part(), low, low, low, low, low, low, low,
			low})
	case 1:
		return netip.AddrFrom16(netip.AddrFrom4(four).As16())
	}
	return netip.AddrFrom4(four)
}

// isBanned looks at each ban.
func isBanned(bans []policy.Ban, address netip.Addr, at time.Time) bool {
	for _, b := range bans {
		if in(b.Network, address) && at.Before(b.Until) {
			return true
		}
	}
	return false
}

func checkBans(t interface{ Fatalf(string, ...any) }, s *policy.Snapshot, bans []policy.Ban,
	address netip.Addr) {
	for _, minutes := range []int{-60, -1, 0, 1, 60} {
		at := now.Add(time.Duration(minutes) * time.Minute)
		var o policy.Verdict
		policy.Evaluate(s, &policy.Facts{Path: "/", Address: address}, nil, at, &o)
		if want := isBanned(bans, address, at); o.Refused() != want {
			t.Fatalf("%v is banned at %v: %v, want %v; of %v", address, at, o.Refused(), want, bans)
		}
	}
}

func TestNetworksAreBannedAsALoopOverThemWould(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var bans []policy.Ban
		for range rapid.IntRange(0, 12).Draw(t, "bans") {
			a := drawAddress(t)
			bans = append(bans, policy.Ban{
				Network: netip.PrefixFrom(a,
					min(a.BitLen(),
						rapid.SampledFrom([]int{0, 1, 7, 8, 16, 24, 31, 32, 56, 63, 64, 65, 96, 104, 127,
							128}).Draw(t, "bits"))),
				Until: now.Add(time.Duration(rapid.IntRange(-2, 2).Draw(t,
					"until")) * time.Minute),
			})
		}
		s := policy.Compile(nil, nil, bans, policy.Options{})
		for range 10 {
			checkBans(t, s, bans, drawAddress(t))
		}
	})
}
