package engine

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// After an outage, what local has admitted on durable limits is charged: for each row one settlement, which
// is sent once. If its outcome is unknown, it is lost, and counted. The registration of a store looks for
// what is to be charged.

// liveSQL counts the proxies. localSQL says when limits were local.
const (
	liveSQL  = `SELECT count(*) FROM rate_limit_nodes n WHERE ` + schema.NodeIsLive
	localSQL = `UPDATE rate_limit_nodes SET local_from = now() - $3::bigint * interval '1 microsecond', local_until = now() - $4::bigint * interval '1 microsecond'
WHERE node = $1 AND epoch = $2::bigint`
)

const (
	// missedBeats is the time without the database after which the rows of other proxies may be old, and
	// reappear is how long they may take to be renewed.
	missedBeats = 2 * heartbeatInterval
	reappear    = 10 * time.Second
)

// liveProxies is what a registration knows of the number of proxies.
type liveProxies struct {
	counted time.Time // when they were counted
	sure    time.Time // from when on fewer are believed
}

// readLive reads how many proxies there are. After an outage, those that have not come back yet count.
func (r *registration) readLive(s *pgdb.Statement, now time.Time) {
	counts := bigints(s)
	if s.Err != nil || len(counts) != 1 {
		return
	}
	t := &r.others
	if !t.counted.IsZero() && now.Sub(t.counted) > missedBeats {
		t.sure = now.Add(reappear)
	}
	t.counted = now
	k := r.store.engine.local
	if n := counts[0]; n > atomic.LoadInt64(&k.live) || n > 0 && now.After(t.sure) {
		atomic.StoreInt64(&k.live, n)
	}
}

// chargeLocal has charged what was admitted without the database, and ends the time of local limits.
func (r *registration) chargeLocal(ctx context.Context, now time.Time) {
	if p := r.store.parts; p != nil && atomic.LoadInt32(&p.state) == partsUnknown {
		r.store.engine.tables.start()
		return // to be continued
	}
	k := r.store.engine.local
	k.bill(decidingStores(r.store))
	k.mu.Lock()
	since, last := k.since, k.last
	over := !since.IsZero() && now.Sub(last) >= localLinger && len(k.unpaid) == 0 && k.charging == 0 && r.store.Unavailable() == nil
	if over {
		k.since = time.Time{}
	}
	k.mu.Unlock()
	if over && r.toldLocal {
		_ = r.store.engine.server.db.Run(ctx, []*pgdb.Statement{{SQL: localSQL, Args: []any{r.name(), r.node.Epoch, now.Sub(since).Microseconds(), now.Sub(last).Microseconds()}, Unnamed: true}})
		r.notifyLocal()
	}
}

// bill makes settlements of what is not charged, for those of the stores that answer.
func (k *local) bill(stores []*Store) {
	k.mu.Lock()
	now := k.serverTime(stores[0])
	var left []*localDebt
	var billed []*settlement
	var of []*Store // for each settlement
	for _, d := range k.unpaid {
		s := stores[partOfSubject(d.subject, len(stores))]
		if s.engine.server.unavailable() != nil {
			left = append(left, d)
			continue
		}
		if n := d.counts(now); n > 0 {
			k.charging += n
			billed = append(billed, &settlement{row: d.of.id, limit: d.limit, back: -n, local: true})
			of = append(of, s)
		}
		if d.of.debt == d {
			d.of.debt = nil
		}
	}
	k.unpaid = left
	k.mu.Unlock()
	for i, s := range billed {
		addSettlement(of[i], settledWindow{s.row, localWindow}, s)
	}
}

// settled records what has become of units that were to be charged: how many of them were, and whether the others may
// have been.
func (k *local) settled(units, charged int64, lost bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.charging -= units
	k.charged += charged
	if lost {
		k.lost += units
	} else {
		k.unfit += units - charged
	}
}

// notifyLocal tells that limits are local, and that they are exact again.
func (r *registration) notifyLocal() {
	k := r.store.engine.local
	k.mu.Lock()
	local := !k.since.IsZero()
	if local == r.toldLocal {
		k.mu.Unlock()
		return
	}
	r.toldLocal = local
	text := ""
	if local {
		text = "the database makes no decisions: this proxy limits by itself, at " + strconv.FormatFloat(100/k.parts, 'g', 3, 64) + " % of each limit"
	} else {
		text = fmt.Sprintf("limits are exact again: this proxy has admitted %d requests by itself, and refused %d. Of durable limits, %d units were charged, %d were beyond the quotas, and %d could not be charged",
			k.admitted, k.refused, k.charged, k.unfit, k.lost)
		k.admitted = 0
		k.refused = 0
		k.charged = 0
		k.unfit = 0
		k.lost = 0
	}
	k.mu.Unlock()
	r.tell(text)
}
