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
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// saltDB is a database that returns a salt after a delay.
type saltDB struct{ pgdb.DB }

func (saltDB) Run(_ context.Context, _ time.Duration, statements []*pgdb.Statement) error {
	time.Sleep(50 * time.Millisecond)
	statements[0].Rows, statements[0].Result = 1, append([]byte{0, 0, 0, 4}, "salt"...)
	return nil
}

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
	if got := fieldWith(respond.NewSalt(saltDB{})); !strings.Contains(got, ";pk=:") {
		t.Errorf("RateLimit is %s, want a member with pk", got)
	}
}

// hangingDB is a database that never responds.
type hangingDB struct{ pgdb.DB }

func (hangingDB) Run(_ context.Context, timeout time.Duration, _ []*pgdb.Statement) error {
	time.Sleep(timeout)
	return pgdb.ErrNoAnswer
}

// Only the first response waits for a database that hangs. Later attempts delay no response.
func TestLaterResponsesDoNotWaitForSalt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		salt := respond.NewSalt(hangingDB{})
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
