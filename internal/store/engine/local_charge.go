package engine

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// After an outage, the registration of a store charges what local has admitted on durable limits: each
// unit once. The charges travel in batches with numbers, of which the row in the registry has the last. A
// batch with an unknown outcome is sent again, and has no effect if its number is there already.

// liveSQL counts the proxies. chargedSQL begins the transaction of a batch of charges, and fails if the row
// has its number. localSQL says when limits were local.
const (
	liveSQL    = `SELECT count(*) FROM rate_limit_nodes n WHERE ` + schema.NodeIsLive
	chargedSQL = `WITH n AS (UPDATE rate_limit_nodes SET charged = $3::bigint WHERE node = $1 AND epoch = $2::bigint AND charged < $3::bigint RETURNING 1)
SELECT CASE count(*) WHEN 0 THEN ('` + onPurpose + `the batch was charged before' || repeat(' ', count(*)::int))::int END FROM n`
	localSQL = `UPDATE rate_limit_nodes SET local_from = now() - $3::bigint * interval '1 microsecond', local_until = now() - $4::bigint * interval '1 microsecond'
WHERE node = $1 AND epoch = $2::bigint`
)

const (
	// missedBeats is the time without the database after which the rows of other proxies may be old, and
	// reappear is how long they may take to be renewed.
	missedBeats = 2 * heartbeatInterval
	reappear    = 10 * time.Second
	// batchCharges is how many rows a batch charges, and chargeTries how many times a batch is refused
	// before it is given up: a row may be locked.
	batchCharges = 500
	chargeTries  = 60
)

// charging is what a registration knows of the proxies, and of its charges.
type charging struct {
	counted time.Time // when the proxies were counted
	sure    time.Time // from when on fewer proxies are believed
	told    bool      // Notice was told that limits are local

	number  int64 // of the batch under way
	part    int   // whose rows it has, of a database in parts
	tries   int
	charges []localCharge // of the batch under way; nil is none
	charged int64         // units
	unfit   int64         // units that were beyond the quota
}

// localCharge is what is to be charged to a row.
type localCharge struct {
	id    lease.RowID
	limit *ratelimit.Limit
	n     int64
}

// readLive reads how many proxies there are. After an outage, those that have not come back yet count.
func (r *registration) readLive(s *pgdb.Statement, now time.Time) {
	counts := bigints(s)
	if s.Err != nil || len(counts) != 1 {
		return
	}
	t := &r.charging
	if !t.counted.IsZero() && now.Sub(t.counted) > missedBeats {
		t.sure = now.Add(reappear)
	}
	t.counted = now
	k := r.store.engine.local
	if n := counts[0]; n > atomic.LoadInt64(&k.live) || n > 0 && now.After(t.sure) {
		atomic.StoreInt64(&k.live, n)
	}
}

// chargeLocal charges what was admitted without the database, and ends the time of local limits. Without a row in the
// registry, nothing is charged: nothing could tell whether it was.
func (r *registration) chargeLocal(ctx context.Context, now time.Time) {
	e := r.store.engine
	t := &r.charging
	if !r.listed && r.writeIn == 0 {
		return // the row is about to be written
	}
	if p := r.store.parts; p != nil && atomic.LoadInt32(&p.state) == partsUnknown {
		e.tables.start()
		return // to be continued
	}
	charged := decidingStores(r.store)
	for t.charges != nil || r.store.Unavailable() == nil {
		if t.charges == nil {
			if t.charges, t.part = e.local.bill(charged); t.charges == nil {
				break
			}
			t.tries = 0
			t.number++ // also if the clock was set back
			if now := time.Now().UnixMicro(); t.number < now {
				t.number = now
			}
		}
		if !r.listed {
			e.local.lose(unitsOf(t.charges))
		} else if !r.charge(ctx, charged[t.part].engine) {
			return // to be continued
		}
		t.charges = nil
	}
	k := e.local
	k.mu.Lock()
	since, last := k.since, k.last
	over := !since.IsZero() && now.Sub(last) >= localLinger && len(k.unpaid) == 0 && r.store.Unavailable() == nil
	if over {
		k.since = time.Time{}
	}
	k.mu.Unlock()
	if over && t.told {
		_ = e.server.db.Run(ctx, []*pgdb.Statement{{SQL: localSQL, Args: []any{r.name(), r.node.Epoch, now.Sub(since).Microseconds(), now.Sub(last).Microseconds()}, Unnamed: true}})
		r.notifyLocal()
	}
}

// bill takes the next charges on one of some stores, and returns its index. It returns nil if there are none, or if
// their stores do not answer.
func (k *local) bill(stores []*Store) ([]localCharge, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.serverTime(stores[0])
	var charges []localCharge
	part := 0
	var left []*localDebt
	for _, d := range k.unpaid {
		of := partOfSubject(d.subject, len(stores))
		switch {
		case len(charges) > 0 && of != part || len(charges) == batchCharges || stores[of].engine.server.unavailable() != nil:
			left = append(left, d)
			continue
		default:
			if n := d.counts(now); n > 0 {
				charges = append(charges, localCharge{d.of.id, d.limit, n})
				part = of
			}
		}
		if d.of.debt == d {
			d.of.debt = nil
		}
	}
	k.unpaid = left
	return charges, part
}

func unitsOf(charges []localCharge) int64 {
	units := int64(0)
	for i := range charges {
		units += charges[i].n
	}
	return units
}

// charge charges a batch, as far as the quotas go. It reports whether the batch is done. The row with the number of
// the last batch is not on the server of a part: a batch there is sent once.
func (r *registration) charge(ctx context.Context, e *engine) bool {
	t := &r.charging
	p := newPlan()
	defer p.free()
	units := unitsOf(t.charges)
	for i := range t.charges {
		c := &t.charges[i]
		add(p, take, c.limit, c.id, 1).entry.n += c.n - 1
	}
	for _, stage := range p.stages {
		sortGroups(stage)
	}
	first := &pgdb.Statement{SQL: chargedSQL, Args: []any{r.name(), r.node.Epoch, t.number}}
	if e.texts.inParts {
		first = &pgdb.Statement{SQL: e.texts.index}
	}
	statements := append([]*pgdb.Statement{first}, p.write(e.texts, settingsOf(e.now, leaveTimeout))...)
	for i, s := range statements {
		s.Joined = i < len(statements)-1
	}
	if _, err := e.server.run(ctx, nodeTimeout, statements); err != nil && e.texts.inParts {
		e.local.lose(units)
		return true
	} else if err != nil {
		return false // it may have been charged
	}
	if isOnPurpose(first) {
		t.charged += units // by an earlier attempt
		return true
	}
	for _, s := range statements {
		if s.Err != nil {
			t.tries++
			if t.tries >= chargeTries {
				e.local.lose(units)
				return true
			}
			return false
		}
	}
	p.read()
	for _, entry := range p.entries[:p.usedEntries] {
		t.charged += entry.granted
		units -= entry.granted
	}
	t.unfit += units
	return true
}

// lose counts units that are not going to be charged.
func (k *local) lose(units int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost += units
}

// notifyLocal tells that limits are local, and that they are exact again.
func (r *registration) notifyLocal() {
	k := r.store.engine.local
	t := &r.charging
	k.mu.Lock()
	local := !k.since.IsZero()
	if local == t.told {
		k.mu.Unlock()
		return
	}
	t.told = local
	text := ""
	if local {
		text = "the database makes no decisions: this proxy limits by itself, at " + strconv.FormatFloat(100/k.parts, 'g', 3, 64) + " % of each limit"
	} else {
		text = fmt.Sprintf("limits are exact again: this proxy has admitted %d requests by itself, and refused %d. Of durable limits, %d units were charged, %d were beyond the quotas, and %d could not be charged",
			k.admitted, k.refused, t.charged, t.unfit, k.lost)
		k.admitted = 0
		k.refused = 0
		k.lost = 0
		t.charged = 0
		t.unfit = 0
	}
	k.mu.Unlock()
	r.tell(text)
}
