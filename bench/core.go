package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// coreLoad is a load on the core, without a proxy, in this process.
type coreLoad struct {
	stores  int // each with its own queue and connections, as each process of a proxy has
	callers int // of a store, each of which waits for one request at a time
	keys    int
	batch   int  // the decisions of a request, each on another key
	bare    bool // upserts of the same rows, without decisions
	dsn     string
}

// bareTable is a table of the same shape as the core's, for the bare upsert.
const bareTable = "CREATE UNLOGGED TABLE bare (LIKE rate_limit_ephemeral INCLUDING ALL) WITH (fillfactor = 70)"

// bareSQL counts hits without deciding anything.
const bareSQL = `INSERT INTO bare AS r (prefix, key, count, window_start, expires_at)
SELECT prefix, key, count, now(), now() + interval '2 hours' FROM unnest($1::text[], $2::text[], $3::bigint[]) AS u(prefix, key, count)
ON CONFLICT (prefix, key) DO UPDATE SET count = r.count + excluded.count RETURNING count`

// measureCore measures the rows of the core.
func (b *bench) measureCore() {
	for _, r := range b.coreRows {
		r.core.dsn = b.postgres.create(b.ctx)
		query(b.ctx, r.core.dsn, postgres.TableSQL, bareTable)
	}
	b.coreRows = b.measureRounds(b.coreRows, b.measureCoreRow)
}

// measureCoreRow measures a row of the core once.
func (b *bench) measureCoreRow(row *row, round int) sample {
	run := row.core.start(uint64(round))
	totals := func() (sample, float64) {
		s := b.postgres.totals(b.ctx)
		var u syscall.Rusage
		check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		s[cpuProxy] = float64(u.Utime.Nano()+u.Stime.Nano()) / 1000
		return s, float64(run.decisions.Load())
	}
	time.Sleep(warmUp * time.Second)
	began := time.Now()
	before, decided := totals()
	time.Sleep(time.Duration(b.seconds) * time.Second)
	after, decisions := totals()
	s := after.since(before, decisions-decided)
	s[perSecond] = (decisions - decided) / time.Since(began).Seconds()
	check(run.stop())
	return s
}

// coreLimit is never reached.
var coreLimit = &ratelimit.Limit{Prefix: "api", Algorithm: ratelimit.SlidingWindow, Events: 1000000000, Window: time.Hour}

// take decides hits.
type take func(hits []ratelimit.Hit, decisions []ratelimit.Decision) error

// open returns the load's way to decide, on connections of its own.
func (l *coreLoad) open() (t take, end func()) {
	db := must(pgxdb.Open(l.dsn, pgxdb.Options{}))
	if l.bare {
		return l.bareTake(db), db.Close
	}
	store := must(postgres.New(db, postgres.Options{}))
	return func(hits []ratelimit.Hit, decisions []ratelimit.Decision) error {
		return store.Take(context.Background(), 30*time.Second, hits, decisions)
	}, func() { store.Close() }
}

// bareTake admits all hits, and counts them with an upsert.
func (l *coreLoad) bareTake(db *pgxdb.DB) take {
	n := l.batch
	prefixes, keys, counts := slices.Repeat([]string{coreLimit.Prefix}, n), make([]string, n), slices.Repeat([]int64{1}, n)
	return func(hits []ratelimit.Hit, decisions []ratelimit.Decision) error {
		for i := range hits {
			keys[i], decisions[i].Allowed = hits[i].Key, true
		}
		s := &postgres.Statement{SQL: bareSQL, Args: []any{prefixes, keys, counts}}
		if err := errors.Join(db.Run(context.Background(), []*postgres.Statement{s}), s.Err); err != nil || s.Rows != n {
			return fmt.Errorf("%d rows for a batch of %d: %w", s.Rows, n, err)
		}
		return nil
	}
}

// coreRun is a coreLoad under way.
type coreRun struct {
	decisions atomic.Int64
	stopping  atomic.Bool
	callers   errgroup.Group
	ends      []func() // of its connections
}

// start starts the callers.
func (l *coreLoad) start(seed uint64) *coreRun {
	r := &coreRun{}
	for s := range l.stores {
		take, end := l.open()
		r.ends = append(r.ends, end)
		for c := range l.callers {
			requests := l.makeRequests(rand.New(rand.NewPCG(seed, uint64(s*l.callers+c))))
			r.callers.Go(func() error { return r.repeat(take, requests) })
		}
	}
	return r
}

// makeRequests draws the hits of a caller's requests, which it sends over and over.
func (l *coreLoad) makeRequests(random *rand.Rand) [][]ratelimit.Hit {
	requests := make([][]ratelimit.Hit, 1000)
	for i := range requests {
		var names []string
		for len(names) < l.batch {
			if name := keyName(random.IntN(l.keys)); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		if l.bare {
			slices.Sort(names) // or else two upserts could deadlock
		}
		for _, name := range names {
			requests[i] = append(requests[i], ratelimit.Hit{Limit: coreLimit, Key: name, Cost: 1})
		}
	}
	return requests
}

// repeat sends the requests until the run stops or a decision is wrong.
func (r *coreRun) repeat(take take, requests [][]ratelimit.Hit) error {
	decisions := make([]ratelimit.Decision, len(requests[0]))
	for i := 0; !r.stopping.Load(); i++ {
		hits := requests[i%len(requests)]
		if err := take(hits, decisions); err != nil {
			return err
		}
		if slices.ContainsFunc(decisions, func(d ratelimit.Decision) bool { return !d.Allowed }) {
			return fmt.Errorf("a wrong decision: %+v", decisions)
		}
		r.decisions.Add(int64(len(hits)))
	}
	return nil
}

// stop waits for the requests in flight and returns the first failure.
func (r *coreRun) stop() error {
	r.stopping.Store(true)
	err := r.callers.Wait()
	for _, end := range r.ends {
		end()
	}
	return err
}
