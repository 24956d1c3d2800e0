package engine

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// lane decides the calls that may wait for a synchronous standby, or all others. If the standby is lost,
// the others do not wait with them.
type lane struct {
	backlog *batch.Backlog
	queue   *batch.Queue // runs batches without requests
}

// The indexes of the lanes.
const (
	plainLane   = 0
	standbyLane = 1
)

// laneOf returns the lane of hits: standbyLane if the commit of one may wait for a standby.
func laneOf(hits []ratelimit.Hit) int {
	for i := range hits {
		if hits[i].Limit.AwaitsDisk() {
			return standbyLane
		}
	}
	return plainLane
}

// addJob adds a job to the backlog of its lane, see batch.Add.
func (e *Engine) addJob(j *batch.Job, wait time.Duration) {
	batch.Add(e.lanes[laneOf([]ratelimit.Hit{j.Hit})].backlog, j, wait)
}
