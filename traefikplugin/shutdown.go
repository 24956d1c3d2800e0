package traefikplugin

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
)

const (
	// shutdownInterval is the time between two flushes after a shutdown has begun.
	shutdownInterval = 20 * time.Millisecond
	// shutdownTimeout is for all of these flushes. Traefik waits 10 s for requests in flight by default.
	shutdownTimeout = time.Minute
)

// watch has the histories written when the server of a request begins to shut down. Traefik does
// not tell plugins that the process is about to end. All its servers shut down at the same time, so that
// one of them is enough.
func (p *process) watch(r *http.Request) {
	if atomic.LoadInt32(&p.attached) != 0 {
		return
	}
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if ok && atomic.CompareAndSwapInt32(&p.attached, 0, 1) {
		server.RegisterOnShutdown(p.flushUntilTheEnd)
	}
}

// flushUntilTheEnd writes all that is pending, again and again: requests in flight are still served. It
// delays nothing.
func (p *process) flushUntilTheEnd() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	defer recovered()
	defer atomic.StoreInt32(&p.attached, 0)
	for ctx.Err() == nil {
		for _, resource := range p.host.Shared() {
			flushHistory(ctx, resource)
		}
		time.Sleep(shutdownInterval)
	}
}

// flushHistory writes what is pending in a history.
func flushHistory(ctx context.Context, resource host.Resource) {
	if w, ok := resource.(*history.Writer); ok {
		_ = w.Flush(ctx) // the history reports it
	}
}
