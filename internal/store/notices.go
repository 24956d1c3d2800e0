package store

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// notices holds the counters that may have reached a percentage of their quota, until the database has
// compared them. The counters that a killed process did not send are found by the upkeep of any proxy.
type notices struct {
	foundAt time.Time // the time of the last upkeep; only upkeep uses it

	mu      sync.Mutex // guards the field below
	waiting map[lease.RowID]*batch.Notice
}

const (
	// maxNotices bounds the counters that wait. Further ones are left to the upkeep.
	maxNotices = 10000
	// noticeUpkeep is the time between two upkeeps of a process.
	noticeUpkeep = 5 * time.Second
)

// Notify compares a counter with its quota at the next upkeep.
func (s *Store) Notify(n *batch.Notice) {
	s.notices.mu.Lock()
	defer s.notices.mu.Unlock()
	if s.notices.waiting == nil {
		s.notices.waiting = map[lease.RowID]*batch.Notice{}
	}
	if len(s.notices.waiting) < maxNotices {
		s.notices.waiting[lease.RowOf(n.Limit, n.Key)] = n
	}
}

// sendNotices makes the notices of the counters that wait, which go on waiting unless that is answered, and
// runs the upkeep if it is due.
func (s *Store) sendNotices(now time.Time) error {
	s.notices.mu.Lock()
	waiting := s.notices.waiting
	s.notices.waiting = nil
	s.notices.mu.Unlock()
	var statements []*pgdb.Statement
	if len(waiting) > 0 {
		var list []*batch.Notice
		for row, n := range waiting {
			n.Prefix, n.Durable = row.Prefix, row.Durable
			list = append(list, n)
		}
		text, err := json.Marshal(list)
		if err != nil {
			return err
		}
		statements = append(statements,
			&pgdb.Statement{SQL: schema.Notice, Args: []any{string(text)}, Unnamed: true})
	}
	if now.Sub(s.notices.foundAt) >= noticeUpkeep {
		s.notices.foundAt = now
		statements = append(statements, &pgdb.Statement{SQL: schema.NoticeUpkeep, Unnamed: true})
	}
	if statements == nil {
		return nil
	}
	err := s.runUpkeep(upkeepTimeout, statements...)
	for _, one := range statements {
		if err == nil && !(one.SQL == schema.NoticeUpkeep && isLeft(one)) {
			err = one.Err
		}
	}
	if err != nil {
		for _, n := range waiting {
			s.Notify(n)
		}
	}
	return err
}
