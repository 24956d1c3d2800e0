package traefikplugin

import (
	"context"
	"net"
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
	// endTimeout bounds the time by which endNodes delays the end of Traefik.
	endTimeout = time.Second
)

// watch settles what runs, flushes the histories and ends the rows in the registry when the server of a
// request starts to shut down, because Traefik does not notify plugins of its end. All servers shut down at
// the same time, so one of them is enough.
func (p *process) watch(r *http.Request) {
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if ok && atomic.CompareAndSwapInt32(&p.attached, 0, 1) {
		go attach(server, &listener{process: p, closed: make(chan struct{})})
	}
}

func attach(server *http.Server, l *listener) {
	defer logPanic()
	_ = server.Serve(l) // returns at the end of the server
}

// listener is a net.Listener without connections. A server that shuts down closes its listeners, and then
// waits until Accept returns. A function of RegisterOnShutdown would run beside the end of Traefik.
type listener struct {
	process *process
	closed  chan struct{}
}

// Accept implements net.Listener. It returns when the server shuts down, the requests that ran are settled,
// and the rows are ended.
func (l *listener) Accept() (net.Conn, error) {
	<-l.closed
	l.process.settleAll()
	ended := make(chan struct{}, 2) // no select, because in Yaegi all goroutines share the cases of a select
	go l.process.endNodes(ended)
	go l.process.flushUntilTheEnd()
	late := time.AfterFunc(endTimeout, func() { ended <- struct{}{} })
	<-ended
	late.Stop()
	return nil, net.ErrClosed
}

// settleAll waits for the responses of the requests to settle, settles those that are left shortly before
// Traefik closes their connections, and sends what waits to the databases.
func (p *process) settleAll() {
	defer logPanic()
	grace := p.grace()
	margin := grace / 3
	if margin > time.Second {
		margin = time.Second
	}
	p.host.Running.Wait(grace - margin)
	p.host.Running.Stop()
	for _, resource := range p.host.Shared() {
		flushStore(resource)
	}
}

// flushStore sends what waits in a resource that is a database.
func flushStore(resource host.Resource) {
	if d, ok := resource.(*host.Database); ok && d.Postgres != nil {
		d.End(func() { d.Postgres.Flush() })
	}
}

// Close implements net.Listener. A server calls it once.
func (l *listener) Close() error {
	close(l.closed)
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return &net.TCPAddr{} }

// endNodes writes the pending records, ends the rows of this process in the registry, and sends to ended.
func (p *process) endNodes(ended chan struct{}) {
	defer func() { ended <- struct{}{} }()
	defer logPanic()
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	for _, resource := range p.host.Shared() {
		flushHistory(ctx, resource)
		endNode(resource)
	}
}

// flushUntilTheEnd flushes the histories repeatedly, because requests in flight still add records. It delays
// neither requests nor the end of Traefik.
func (p *process) flushUntilTheEnd() {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	defer logPanic()
	defer atomic.StoreInt32(&p.attached, 0)
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

// endNode ends the row of this process in the registry of a resource that is a database.
func endNode(resource host.Resource) {
	if d, ok := resource.(*host.Database); ok && d.Node != nil {
		d.Node.End(d.DB)
	}
}
