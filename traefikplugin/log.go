package traefikplugin

import (
	"fmt"
	"log"
	"strconv"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// logger logs for a pool. It never logs a key or a DSN.
type logger struct {
	sampler edge.Sampler
}

// log writes to log.Writer, which in Traefik is Traefik's log at the level ERROR. os.Stderr
// is not.
func (l *logger) log(message string) {
	fmt.Fprintln(log.Writer(), "pg_ratelimit: "+message)
}

// failure logs an error, at most once a second.
func (l *logger) failure(err error) {
	dropped, ok := l.sampler.Next(time.Now())
	switch {
	case !ok:
	case dropped > 0:
		l.log(err.Error() + " (and " + strconv.FormatInt(dropped, 10) + " more failures since the last line)")
	default:
		l.log(err.Error())
	}
}

// emptyKeys warns once for each limit of a middleware if its key is empty for a request.
type emptyKeys struct {
	logger *logger
	name   string // of the middleware

	mu     sync.Mutex
	logged map[string]bool // by prefix; guarded by mu
}

func (e *emptyKeys) warn(prefix string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.logged[prefix] {
		e.logged[prefix] = true
		e.logger.log("middleware " + e.name + ", prefix " + prefix + ": the key of a request is empty: all such requests share one quota")
	}
}

// recovered ends a panic, which would end Traefik if it left a goroutine of the plugin. It
// must be deferred.
func (l *logger) recovered() {
	if p := recover(); p != nil {
		l.failure(fmt.Errorf("panic: %v", p))
	}
}
