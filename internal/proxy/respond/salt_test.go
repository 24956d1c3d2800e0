package respond_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/fakedb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// fieldWith returns the field RateLimit of a response with a salt.
func fieldWith(salt *respond.Salt) string {
	hits := []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: "a", Events: 5, Window: time.Minute}, Key: "k"}}
	decisions := []ratelimit.Decision{{Allowed: true, Quota: 5, Remaining: 4}}
	o := outcomeOf(hits, decisions)
	h := http.Header{}
	respond.SetFields(h, settings.Fields{IETF: true}, salt, &o, hits, decisions)
	return h.Get("RateLimit")
}

// Even the first response has the parameter pk, because it waits until the salt has been read.
func TestFirstResponseHasPartitionKey(t *testing.T) {
	salt := respond.NewSalt(fakedb.Func(func(_ context.Context, _ time.Duration, s []*pgdb.Statement) error {
		time.Sleep(50 * time.Millisecond)
		s[0].Rows, s[0].Result = 1, append([]byte{0, 0, 0, 4}, "salt"...)
		return nil
	}))
	if got := fieldWith(salt); !strings.Contains(got, ";pk=:") {
		t.Errorf("RateLimit is %s, want a member with pk", got)
	}
}

// Only the first response waits for a database that hangs. Later attempts delay no response.
func TestLaterResponsesDoNotWaitForSalt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		salt := respond.NewSalt(fakedb.Silent)
		for i := range 4 {
			start := time.Now()
			fieldWith(salt)
			if waited := time.Since(start); (waited > 0) != (i == 0) {
				t.Errorf("response %d waited %v, want a wait of the first one only", i, waited)
			}
			time.Sleep(time.Minute)
		}
	})
}
