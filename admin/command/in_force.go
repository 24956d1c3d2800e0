package command

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

const (
	// inForceWait bounds the time for which a command waits until the proxies apply its change.
	inForceWait  = 3 * time.Second
	inForcePause = 50 * time.Millisecond // between two looks at the registry
	maxNamed     = 5                     // bounds the proxies in a message
)

// inForceSQL returns the number of the running proxies, of those with a policy, and the names of those that
// have not applied the change of the transaction $1. It returns no row if that has not changed the policy.
const inForceSQL = `SELECT count(*), count(r.applied), coalesce(array_agg(n.node ORDER BY n.node)
	FILTER (WHERE r.applied IS NOT NULL
		AND NOT rate_limit_has_applied(r.applied, r.log, $1::text::xid8)), '{}')
FROM rate_limit_nodes n, rate_limit_read_report(n.report) AS r
WHERE ` + schema.NodeIsLive + `
HAVING EXISTS (SELECT FROM rate_limit_changes WHERE xid = $1::text::xid8)`

// awaitInForce waits until all running proxies apply the change of the policy that the command has made, and
// says so on standard error. It warns if no running proxy has a policy, and says nothing if none runs, or if
// the role may not read the registry.
func (c *invocation) awaitInForce() {
	if c.transaction == nil {
		return
	}
	for {
		var running, proxies int
		var without []string
		err := c.conn.QueryRow(c.ctx, inForceSQL, *c.transaction).Scan(&running, &proxies, &without)
		waited := time.Since(c.committedAt)
		switch {
		case err != nil || running == 0:
			return
		case proxies == 0:
			fmt.Fprintln(c.cmd.ErrOrStderr(), "Warning: no running proxy applies a policy of this database: "+
				"no rule and no ban holds.")
			return
		case len(without) == 0:
			of := fmt.Sprint(proxies, " proxies")
			if proxies == 1 {
				of = "1 proxy"
			}
			fmt.Fprintf(c.cmd.ErrOrStderr(), "In force at %s after %.1f s.\n", of, waited.Seconds())
			return
		case waited >= inForceWait:
			if more := len(without) - maxNamed; more > 0 {
				without = append(without[:maxNamed], fmt.Sprint(more, " more"))
			}
			fmt.Fprintf(c.cmd.ErrOrStderr(), "Not in force after %.1f s at %s (of %d): see caddy "+
				"pg-ratelimit state\n", waited.Seconds(), redactAndQuote(strings.Join(without, ", ")),
				proxies)
			return
		}
		time.Sleep(inForcePause)
	}
}
