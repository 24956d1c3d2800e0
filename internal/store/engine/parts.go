package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The counts of a database can be in parts, on the servers of Citus. A part is a schema with the two
// tables of counts and rate_limit_processes. The function rate_limit_parts of the database says which parts
// there are, so a store finds out when it looks for its tables. Such a store decides nothing itself. Each
// part has a store of its own, with its queues, leases
// and known refusals. Their statements run at the server of the part (parts_routes.go). The statements
// and the batches do not know of parts: the names of the tables and the guard are values of a store.
//
// A row is in the part of its subject, which is Hit.Subject, or the key as it is stored. A request
// of one subject is decided in its part as on a single server. parts_several.go has the others.

// States of parts.
const (
	partsUnknown = iota // the database has not answered yet
	partsNone           // the counts are in one database
	partsFound          // stores and routes are set
)

// parts are the stores of the parts.
type parts struct {
	counts  *counts // of all stores
	local   *local  // likewise
	options Options // of the stores
	routes  *routes

	state  int32    // atomic
	stores []*Store // by part; they do not change

	mu     sync.Mutex // guards all that follows
	closed bool
	queues map[*batch.Queue][]*batch.Queue
}

func newParts(root *Store, db elsewhere, o Options) *parts {
	return &parts{
		counts: root.engine.counts, local: root.engine.local, options: o, routes: newRoutes(root.engine.server, db),
		queues: map[*batch.Queue][]*batch.Queue{},
	}
}

// partsOf returns the parts of a store, or nil if there are none, or if that is not known yet.
func partsOf(s *Store) *parts {
	p := s.parts
	if p == nil || atomic.LoadInt32(&p.state) != partsFound {
		return nil
	}
	return p
}

// allStores are a store and those of its parts, and decidingStores those of them that decide. They copy one by one
// because Yaegi takes the type of the stores for another one.
func allStores(s *Store) []*Store {
	all := []*Store{s}
	if p := partsOf(s); p != nil {
		for part := range p.stores { //nolint:staticcheck // see above
			all = append(all, p.stores[part])
		}
	}
	return all
}

func decidingStores(s *Store) []*Store {
	if all := allStores(s); len(all) > 1 {
		return all[1:]
	}
	return []*Store{s}
}

// anyBusy reports whether a batch of a store or of its parts is in flight.
func anyBusy(s *Store) bool {
	for _, one := range allStores(s) {
		if one.busy() {
			return true
		}
	}
	return false
}

// await waits until it is known whether there are parts, and returns what is left of a timeout. If that is not known
// after it, a batch of the store gets the error.
func (p *parts) await(ctx context.Context, s *Store, timeout time.Duration) time.Duration {
	if atomic.LoadInt32(&p.state) != partsUnknown || s.unavailable() != nil {
		return timeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if s.engine.tables.wait(ctx) == nil {
		return timeout
	}
	deadline, _ := ctx.Deadline()
	return roundDown(time.Until(deadline))
}

// find finds out whether the counts are in parts, once.
func (p *parts) find(ctx context.Context) (bool, error) {
	if state := atomic.LoadInt32(&p.state); state != partsUnknown {
		return state == partsFound, nil
	}
	found, err := p.routes.find(ctx)
	if err != nil {
		return false, err
	}
	if !found {
		atomic.StoreInt32(&p.state, partsNone)
		return false, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false, ratelimit.ErrClosed
	}
	p.open()
	atomic.StoreInt32(&p.state, partsFound)
	startTimelines(p.routes.server.closing, p)
	return true, nil
}

// open makes the stores. The caller holds the mutex.
func (p *parts) open() {
	o := p.options
	o.DisableMigration = true
	n := len(p.routes.schemas)
	if o.MaxBlockedKeys > 0 {
		o.MaxBlockedKeys = (o.MaxBlockedKeys + n - 1) / n
	}
	if o.MaxLeases > 0 {
		o.MaxLeases = (o.MaxLeases + n - 1) / n
	}
	for part := 0; part < n; part++ {
		s := newPartStore(p, part, o)
		s.engine.bounds.parts = n
		p.stores = append(p.stores, s)
	}
}

func newPartStore(p *parts, part int, o Options) *Store {
	s := newStore(newPartDB(p.routes, part), o, newStatements(p.routes.tablesOf(part)), p.counts, p.local)
	s.past.part = true
	return s
}

// setPartsPaused is SetPaused for all parts.
func setPartsPaused(p *parts, paused bool) {
	for part := range p.stores {
		p.stores[part].SetPaused(paused)
	}
}

// partOfSubject is the part of a subject: the first four bytes of its SHA-256, as a number, modulo the number
// of parts. In SQL that is
//
//	('x' || left(encode(sha256(convert_to(subject, 'UTF8')), 'hex'), 8))::bit(32)::bigint % parts
func partOfSubject(subject string, parts int) int {
	sum := sha256.Sum256([]byte(subject))
	return int(binary.BigEndian.Uint32(sum[:4]) % uint32(parts))
}

// several is what partOf returns for hits that are not in one part.
const several = -1

// partOf returns the part of all hits of a call, or several.
func (p *parts) partOf(hits []ratelimit.Hit) int {
	part := several
	subject := ""
	for i := range hits {
		h := &hits[i]
		of := subjectOf(h)
		if i > 0 && of == subject {
			continue
		}
		subject = of
		next := partOfSubject(of, len(p.stores))
		if i > 0 && next != part {
			return several
		}
		part = next
	}
	return part
}

// subjectOf is the subject of a hit.
func subjectOf(h *ratelimit.Hit) string {
	if h.Subject != "" {
		return h.Subject
	}
	return h.StoredKey()
}

// take is Store.Take.
func (p *parts) take(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit, decisions []ratelimit.Decision) error {
	if part := p.partOf(hits); part != several {
		return p.stores[part].Take(ctx, timeout, hits, decisions)
	}
	return p.takeSeveral(ctx, timeout, hits, decisions)
}

// pass passes the calls of a batch of a queue of OpenQueue on to the parts, which finish them, and reports whether
// it has. The keys are not as they are stored yet. deliver is that of the queue.
func (p *parts) pass(s *Store, q *batch.Queue, deliver func(calls []*batch.Call), calls []*batch.Call) bool {
	if p.await(context.Background(), s, batch.Timeout(q)); partsOf(s) == nil {
		return false
	}
	for _, c := range calls {
		part := several
		if len(c.Hits) > 0 {
			part = p.partOf(c.Hits)
		}
		if part != several {
			batch.Pass(p.queue(q, part, deliver), c)
		} else {
			startCall(p, q, c)
		}
	}
	return true
}

// startCall decides a call that is not in one part, in the background.
func startCall(p *parts, q *batch.Queue, c *batch.Call) {
	go func() {
		if err := batch.PanicError(func() { p.decideCall(q, c) }); err != nil {
			c.Err = err
		}
		batch.Finish(q, []*batch.Call{c}, nil)
	}()
}

// queue returns the queue of a part for the calls of a queue of the store.
func (p *parts) queue(q *batch.Queue, part int, deliver func(calls []*batch.Call)) *batch.Queue {
	p.mu.Lock()
	defer p.mu.Unlock()
	queues := p.queues[q]
	if queues == nil {
		queues = make([]*batch.Queue, len(p.stores))
		p.queues[q] = queues
	}
	if queues[part] == nil {
		queues[part] = p.stores[part].OpenQueue(batch.Timeout(q), nil, deliver)
	}
	return queues[part]
}

// decideCall decides a call of a queue that is not in one part.
func (p *parts) decideCall(q *batch.Queue, c *batch.Call) {
	timeout := batch.Timeout(q)
	if c.Reset {
		c.Err = p.reset(context.Background(), timeout, c.Hits)
	} else {
		c.Decisions = append(c.Decisions[:0], make([]ratelimit.Decision, len(c.Hits))...)
		c.Err = p.takeSeveral(context.Background(), timeout, c.Hits, c.Decisions)
	}
	storeKeys([]*batch.Call{c}) // as after the decisions of one part
}

// unavailable returns why no part can decide, or nil if one of them can.
func (p *parts) unavailable() error {
	var err error
	for part := range p.stores {
		if err = p.stores[part].engine.server.unavailable(); err == nil {
			return nil
		}
	}
	return err
}

// close closes the stores, and the connections.
func (p *parts) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	if atomic.LoadInt32(&p.state) == partsFound {
		var closing sync.WaitGroup
		for part := range p.stores {
			startClose(&closing, p.stores[part])
		}
		closing.Wait()
	}
	p.routes.close()
}

// startClose closes a store, or a DB, in the background.
func startClose(closing *sync.WaitGroup, what interface{ Close() }) {
	closing.Add(1)
	go func() {
		_ = batch.PanicError(func() { what.Close() })
		closing.Done()
	}()
}
