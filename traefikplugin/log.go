package traefikplugin

import (
	"fmt"
	"log"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// logger logs for a pool. It never logs a key or a DSN.
type logger struct {
	outage edge.Outage
}

// log writes to log.Writer, which in Traefik is Traefik's log at the level ERROR. os.Stderr
// is not.
func (l *logger) log(message string) {
	fmt.Fprintln(log.Writer(), "pg_ratelimit: "+message)
}

// inform writes what is no failure to the standard output as a line of Traefik's own log: all that log writes is an
// error there.
func inform(message string) {
	fmt.Println(time.Now().Format(time.RFC3339) + " INF pg_ratelimit: " + message)
}

// failure logs an error that no request sees, and failed one of a request without a decision: both together at most once a
// second.
func (l *logger) failure(err error) { l.sampled(err, false) }

func (l *logger) failed(err error) { l.sampled(err, true) }

func (l *logger) sampled(err error, ofRequest bool) {
	dropped, ok := l.outage.Failed(err, ofRequest, time.Now())
	switch {
	case !ok:
	case dropped > 0:
		l.log(err.Error() + " (and " + strconv.FormatInt(dropped, 10) + " more failures since the last line)")
	default:
		l.log(err.Error())
	}
}

// answersAgain logs that an outage has ended if decisions show it, at the level of the outage.
func (l *logger) answersAgain(decisions []ratelimit.Decision) {
	if lasted, undecided, ended := l.outage.Ended(decisions, time.Now()); ended {
		l.log(edge.AnswersAgain(lasted, undecided))
	}
}

// recovered ends a panic, which would end Traefik if it left a goroutine of the plugin. It
// must be deferred.
func (l *logger) recovered() {
	if p := recover(); p != nil {
		l.failure(fmt.Errorf("panic: %v", p))
	}
}
