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
	// shutdownInterval is the time between two flushes during a shutdown.
	shutdownInterval = 20 * time.Millisecond
	// shutdownTimeout bounds all flushes together. By default, Traefik waits 10 s for requests in flight.
	shutdownTimeout = time.Minute
)

// watch flushes the histories and ends the rows in the registry when the server of a request starts to shut
// down, because Traefik does not notify plugins of its end. All servers shut down at the same time, so one of
// them is enough.
func (p *process) watch(r *http.Request) {
	if atomic.LoadInt32(&p.attached) != 0 {
		return
	}
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if ok && atomic.CompareAndSwapInt32(&p.attached, 0, 1) {
		server.RegisterOnShutdown(p.flushUntilTheEnd)
	}
}

// flushUntilTheEnd flushes the histories repeatedly, because requests in flight still add records. It delays
// neither requests nor the shutdown.
func (p *process) flushUntilTheEnd() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	defer logPanic()
	defer atomic.StoreInt32(&p.attached, 0)
	for _, resource := range p.host.Shared() {
		endNode(resource)
	}
	for ctx.Err() == nil {
		for _, resource := range p.host.Shared() {
			flushHistory(ctx, resource)
		}
		time.Sleep(shutdownInterval)
	}
}

// flushHistory writes the pending records of a resource that is a history.
func flushHistory(ctx context.Context, resource host.Resource) {
	if w, ok := resource.(*history.Writer); ok {
		_ = w.Flush(ctx) // the history logs its errors
	}
}

// endNode ends the row of this process in the registry of a resource that is a database, in the background.
func endNode(resource host.Resource) {
	d, ok := resource.(*host.Database)
	if !ok || d.Node == nil {
		return
	}
	go func() {
		defer logPanic()
		d.Node.End(d.DB)
	}()
}
