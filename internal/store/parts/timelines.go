package parts

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/timeline"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// timelineTimeout is for one look at a timeline.
const timelineTimeout = 2 * time.Second

// startTimelines reads the timelines of the servers of the parts in the background, each without waiting for the
// others, and has the parts of a server with another history forget what may be lost.
func (s *Store) startTimelines() {
	r := s.routes
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, db := range r.servers {
		if !r.timelines[name] {
			r.timelines[name] = true
			s.startTimeline(name, db)
		}
	}
}

// startTimeline is startTimelines for one server.
func (s *Store) startTimeline(name string, db pgdb.DB) {
	go func() {
		ctx, cancel := context.WithTimeout(s.closing, timelineTimeout)
		sent := time.Now()
		read := &pgdb.Statement{SQL: timeline.SQL}
		err := batch.PanicError(func() {
			if db.Run(ctx, []*pgdb.Statement{read}) == nil {
				for part := range s.stores {
					if s.routes.of(part).address == name {
						s.stores[part].SeeTimeline(read, sent)
					}
				}
			}
		})
		cancel()
		if err != nil && s.report != nil {
			_ = batch.PanicError(func() { s.report(err) })
		}
		s.routes.mu.Lock()
		delete(s.routes.timelines, name)
		s.routes.mu.Unlock()
	}()
}
