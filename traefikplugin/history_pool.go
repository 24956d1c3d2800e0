package traefikplugin

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// sharedHistory is a history that middlewares with the same settings share. It is guarded by the
// registry's mutex.
type sharedHistory struct {
	writer  *history.Writer
	users   int
	closing *time.Timer // closes the history; nil while there are users
}

// acquireHistory returns what writes the history into the database of a pool, and opens it if there
// is none. It does not wait for the network. One releaseHistory must follow each acquireHistory. A
// history is a user of its pool, so that it can write what is pending when it is closed.
func (r *registry) acquireHistory(p *pool, s edge.HistorySettings) (*history.Writer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := p.histories[s]
	if used == nil {
		opened, err := edge.OpenHistory(p.db, s, edge.HistoryOptions{
			Node: p.settings.NodeNameOf(proxyKind), AutoMigrate: p.settings.AutoMigrate, OnError: func(err error) { p.logger.log(err.Error()) },
		})
		if err != nil {
			return nil, err
		}
		opened.Prepare()
		used = &sharedHistory{writer: opened}
		p.histories[s] = used
		p.users++
	}
	if used.closing != nil {
		used.closing.Stop()
		used.closing = nil
	}
	used.users++
	return used.writer, nil
}

// releaseHistory ends the use of a history. Like a pool it stays open for a while, for requests
// that wait for a decision and for the middlewares of a reload.
func (r *registry) releaseHistory(p *pool, s edge.HistorySettings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := p.histories[s]
	used.users--
	if used.users > 0 {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(r.delay+p.longest, func() {
		defer p.logger.recovered()
		r.mu.Lock()
		if used.closing != timer {
			r.mu.Unlock()
			return // the history was acquired meanwhile
		}
		delete(p.histories, s)
		r.mu.Unlock()
		used.writer.Close()
		r.release(p)
	})
	used.closing = timer
}
