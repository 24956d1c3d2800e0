package admin

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// FuzzArguments: any argument of a command, or parameter of the page, is refused with an error, or means something that the
// database holds.
func FuzzArguments(f *testing.F) {
	for _, seed := range [][2]string{
		{"limit.burst", "50/10s"}, {"limit.x", "unlimited/1mo calendar Europe/Berlin"}, {"limit.f", "5/in_flight"}, {"valid", "2036-11-27..2036-11-30"}, {"valid", "2036-11-27T00:00:00Z..2036-11-27T00:00:00.5Z"},
		{"valid", "..9999-12-31T23:59:59-12:00"}, {"networks", "192.0.2.0/24,::1"}, {"per_hour", "unlimited"}, {"ban", "1h"}, {"cost", "-1"}, {"retry_after", "36525d2562047h"}, {"paths", "/a/*, ,/b"},
		{"since", "36525d2562047h"}, {"since", "7y"}, {"until", "24h"}, {"month", "2026-11"}, {"address", "fe80::1%eth0"}, {"network", "::ffff:192.0.2.0/120"},
	} {
		f.Add(seed[0], seed[1])
	}
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, name, text string) {
		if _, err := parseAssignments([]string{name + "=" + text}, replaySettings, isLimit); err != nil && !strings.Contains(err.Error(), ": ") {
			t.Errorf("%s=%q: %v", name, text, err)
		}
		named := func(err error) bool {
			var wrong *ratelimit.FieldError
			if err != nil && (!errors.As(err, &wrong) || wrong.Want == "") {
				t.Errorf("%q: %v", text, err)
			}
			return err == nil
		}
		for _, kind := range []string{"text", "text[]", "cidr[]", "bigint", "boolean", "date", "interval", "timestamp with time zone", "tstzrange"} {
			_, err := readValue(kind, name, text, now)
			named(err)
		}
		if network, err := ParseNetwork("network", text); named(err) {
			if again, err := ParseNetwork("network", network.String()); err != nil || again != network || network != network.Masked() {
				t.Errorf("the network %q is %v, and of that %v, %v", text, network, again, err)
			}
		}
		_, err := ParseAddress("address", text)
		named(err)
		if until, err := ParseUntil("until", text, now); named(err) && !until.IsZero() && !until.After(now) {
			t.Errorf("until %q is %v", text, until)
		}
		if ago, err := ParseAgo("since", text, now); named(err) && ago.After(now) {
			if _, err := settings.ParseAge(text); err == nil {
				t.Errorf("%q ago is %v", text, ago)
			}
		}
		if p, err := ParsePeriod(text, "", now); named(err) && !p.From.Before(p.Until) {
			t.Errorf("since %q is %v", text, p)
		}
		if p, err := ParseMonth("month", text, now); named(err) && !p.From.Before(p.Until) {
			t.Errorf("the month %q is %v", text, p)
		}
	})
}
