package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// findEngines sets the engines, unless an earlier call has set them, and reports whether the counts are in
// shards. It implements engine.Options.Discover.
func (s *Store) findEngines(ctx context.Context) (bool, error) {
	if len(s.engines) > 0 {
		return s.engines[0] != s.base, nil
	}
	sharded := false
	if s.routes != nil {
		var err error
		if sharded, err = s.routes.find(ctx, s.base.Health()); err != nil {
			return false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return false, ratelimit.ErrClosed
	case !sharded:
		s.engines = append(s.engines, s.base)
		atomic.StoreInt32(&s.found, 1)
		return false, nil
	}
	n := len(s.routes.schemas)
	var engines []*engine.Engine
	for shard := 0; shard < n; shard++ {
		o := s.options
		o.Tables = s.routes.tables[shard]
		o.Shards = n
		//nolint:staticcheck // Yaegi does not convert an argument
		var db pgdb.DB = newShardDB(s.routes, shard)
		e, err := engine.New(db, o)
		if err != nil {
			return false, err
		}
		if s.usesLocal {
			lease.KeepLocal(e.Rows())
		}
		engines = append(engines, e)
	}
	s.engines = engines
	atomic.StoreInt32(&s.found, 1)
	return true, nil
}

// Prepare works in the background: it connects, finds the engines, and runs a migration if one is due.
// Without it, the first decision waits for this work.
func (s *Store) Prepare() { s.base.Prepare() }

// Ready reports whether the tables of counts exist in the current version.
func (s *Store) Ready() bool { return s.base.Ready() }

// await waits for up to timeout until the engines are found. While the database is silent, it fails
// immediately.
func (s *Store) await(ctx context.Context, timeout time.Duration) error {
	if s.base.Ready() {
		return nil
	}
	h := s.base.Health()
	if err := h.Unavailable(); err != nil {
		return err
	}
	if timeout <= 0 || h.Silent() {
		return ratelimit.ErrTimeout
	}
	err := s.base.Await(ctx, timeout)
	if err != nil && ctx.Err() != nil {
		return h.Ended(ctx)
	}
	return h.NoDecision(err, false)
}

// allEngines returns the engine of the database, and the engines of the shards.
func (s *Store) allEngines() []*engine.Engine {
	engines := []*engine.Engine{s.base}
	if atomic.LoadInt32(&s.found) == 1 && s.engines[0] != s.base {
		engines = append(engines, s.engines...)
	}
	return engines
}

// Engine returns the engine that counts for a subject. Before the engines are found, that is the engine of
// the database.
func (s *Store) Engine(subject string) *engine.Engine {
	switch {
	case atomic.LoadInt32(&s.found) == 0:
		return s.base
	case len(s.engines) == 1:
		return s.engines[0]
	}
	return s.engines[ShardOf(subject, len(s.engines))]
}

// ShardOf returns the shard of a subject: the first four bytes of its SHA-256, as a number, modulo shards. In
// SQL that is
//
//	('x' || left(encode(sha256(convert_to(subject, 'UTF8')), 'hex'), 8))::bit(32)::bigint % shards
func ShardOf(subject string, shards int) int {
	sum := sha256.Sum256([]byte(subject))
	return int(binary.BigEndian.Uint32(sum[:4]) % uint32(shards))
}

// commonShard returns the shard of all hits of a call, or severalShards.
func (s *Store) commonShard(hits []ratelimit.Hit) int {
	shard := 0
	for i := range hits {
		if i > 0 && subjectOf(&hits[i]) == subjectOf(&hits[i-1]) {
			continue
		}
		next := s.shardOf(&hits[i])
		if i > 0 && next != shard {
			return severalShards
		}
		shard = next
	}
	return shard
}

// shardOf returns the shard of a hit.
func (s *Store) shardOf(h *ratelimit.Hit) int { return ShardOf(subjectOf(h), len(s.engines)) }

// subjectOf returns the subject of a hit.
func subjectOf(h *ratelimit.Hit) string {
	if h.Subject != "" {
		return h.Subject
	}
	return h.StoredKey()
}

// Unavailable returns nil if a shard can decide, and otherwise the error of one of the shards. See
// engine.Engine.Unavailable.
func (s *Store) Unavailable() error {
	if !s.base.Ready() {
		return s.base.Unavailable()
	}
	var err error
	for _, e := range s.engines {
		if err = e.Unavailable(); err == nil {
			return nil
		}
	}
	return err
}

// severalShards is the result of commonShard for hits in different shards.
const severalShards = -1

// serverTime returns the time of the server of an engine in microseconds.
func (s *Store) serverTime(e *engine.Engine) int64 {
	if s.options.Now != nil {
		return s.options.Now().UnixMicro()
	}
	return lease.ServerNow(e.Rows())
}
