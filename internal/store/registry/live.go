package registry

import (
	"fmt"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/results"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// liveSQL counts the proxies, and the rows of this process among them.
const liveSQL = `SELECT count(*), count(*) FILTER (WHERE n.node = $1 AND n.epoch = $2::bigint) FROM rate_limit_nodes n WHERE ` +
	schema.NodeIsLive

const (
	// missedBeats is the time without the database after which the rows of other proxies may be old, and
	// reappear is how long they may take to be renewed.
	missedBeats = 2 * heartbeatInterval
	reappear    = 10 * time.Second
)

// liveProxies is what a registry knows of the number of proxies.
type liveProxies struct {
	n        int64
	counted  time.Time // when they were counted
	sure     time.Time // from when on fewer are believed
	refusals refusals
}

// readLive reads how many proxies there are. After an outage, those that have not come back yet count. So they do after
// a crash that emptied the table between two polls, when no Run failed: the row of this process is missing.
func (r *Registry) readLive(s *pgdb.Statement, now time.Time) {
	r.fail("read", s.Err)
	t := &r.live
	if s.Err != nil {
		t.refusals.add(now)
		return
	}
	t.refusals = refusals{}
	counts := results.Bigints(s.Result)
	if len(counts) != 2 {
		return
	}
	n, own := counts[0], counts[1]
	if !t.counted.IsZero() && now.Sub(t.counted) > missedBeats || r.row.listed && own == 0 {
		t.sure = now.Add(reappear)
	}
	t.counted = now
	if n > t.n || n > 0 && now.After(t.sure) {
		t.n = n
		r.store.SetProxies(n)
	}
}

// noticeLocal tells Notice that limits are local, and that they are exact again, which the row has said before.
func (r *Registry) noticeLocal(now time.Time) {
	l := r.store.Local()
	if l.On == r.toldLocal {
		return
	}
	r.toldLocal = l.On
	if l.On {
		percent := strconv.FormatFloat(100/l.Parts, 'g', 3, 64)
		r.tell("the database makes no decisions: this proxy limits by itself, at " + percent + " % of each limit")
		return
	}
	r.row.renewed = time.Time{}
	r.beat(now) // if that fails, the row does not say it
	r.tell(fmt.Sprintf("limits are exact again: this proxy has admitted %d requests by itself, and refused %d. Of durable limits, %d units were charged, %d were beyond the quotas, and %d could not be charged",
		l.Admitted, l.Refused, l.Charged, l.Unfit, l.Lost))
}
