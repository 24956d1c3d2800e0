package policy_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/fakedb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// firstStart is a database without a policy, which takes a time to create one. Its other statements fail.
type firstStart struct {
	creation  time.Duration
	restoring bool
	locked    time.Duration // for how long another session creates the tables
	start     time.Time
}

func (d *firstStart) run(ctx context.Context, _ time.Duration, statements []*pgdb.Statement) error {
	if statements == nil { // Exec
		health.Sleep(ctx, d.creation)
		return pg.Outcome(ctx, ctx.Err())
	}
	for _, s := range statements {
		s.Err = errors.New("no such table")
		text := ""
		switch s.SQL {
		case schema.StateSQL:
			text = fmt.Sprintf(`{"in_part":%v}`, d.restoring)
		case schema.Locked:
			text = string([]byte{0, 0, 0, 0})
			if time.Since(d.start) < d.locked {
				text = string([]byte{0, 0, 0, 1})
			}
		}
		if text != "" {
			s.Err, s.Result = nil, append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)
		}
	}
	return nil
}

// At the first start, a request waits while the tables of the policy are being created, until 5 s after the
// begin, and is then refused, also if another session creates them. It does not wait during a restore.
func TestRequestsWaitForTheFirstRules(t *testing.T) {
	for name, test := range map[string]struct {
		db   firstStart
		want string
	}{
		"created in 3 s":  {firstStart{creation: 3 * time.Second}, "overloaded false at 3.36s"},
		"created in 10 s": {firstStart{creation: 10 * time.Second}, "overloaded true at 5s"},
		"a restore":       {firstStart{creation: time.Hour, restoring: true}, "overloaded false at 240ms"},
		"another session": {firstStart{locked: 3 * time.Second}, "overloaded false at 3.36s"},
		"it takes 10 s":   {firstStart{locked: 10 * time.Second}, "overloaded true at 5s"},
		"nobody":          {firstStart{}, "overloaded false at 240ms"},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := health.New(t.Context(), func() float64 { return 0 },
				func(context.Context, time.Duration) error { return nil })
			p := policy.New(fakedb.Func(test.db.run),
				policy.Settings{Health: h, DisableMigration: test.db.creation == 0})
			defer p.Close()
			start := time.Now()
			test.db.start = start
			err := p.Evaluate(t.Context(), 240*time.Millisecond, "", "", &policy.Facts{}, &policy.Verdict{})
			got := fmt.Sprintf("overloaded %v at %v", errors.Is(err, ratelimit.ErrOverloaded),
				time.Since(start))
			if got != test.want {
				t.Errorf("%s: %s, %v, want %s", name, got, err, test.want)
			}
		})
	}
}
