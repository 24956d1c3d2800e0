package traefikplugin

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

const (
	// shutdownInterval is the time between two flushes after a shutdown has begun.
	shutdownInterval = 20 * time.Millisecond
	// shutdownTimeout is for all of these flushes. Traefik waits 10 s for requests in flight by default.
	shutdownTimeout = time.Minute
)

// flushAtShutdown has the histories written when the server of a request begins to shut down. Traefik does
// not tell plugins that the process is about to end. All its servers shut down at the same time, so that
// one of them is enough. The caller has seen that none is watched yet.
func (r *registry) flushAtShutdown(request *http.Request) {
	server, ok := request.Context().Value(http.ServerContextKey).(*http.Server)
	if ok && atomic.CompareAndSwapInt32(&r.watched, 0, 1) {
		server.RegisterOnShutdown(r.flushUntilTheEnd)
	}
}

// flushUntilTheEnd writes all that is pending, again and again: requests in flight are still served. It
// delays nothing.
func (r *registry) flushUntilTheEnd() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	defer (&logger{}).recovered()
	defer atomic.StoreInt32(&r.watched, 0)
	for ctx.Err() == nil {
		for _, w := range r.writers() {
			_ = w.Flush(ctx) // the history reports it
		}
		time.Sleep(shutdownInterval)
	}
}

// writers are all open histories.
func (r *registry) writers() []*history.Writer {
	var all []*history.Writer
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pools {
		for _, s := range p.shared {
			if s.writer != nil {
				all = append(all, s.writer)
			}
		}
	}
	return all
}
