package edge

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
)

// Live compares reports as a process does.
type Live struct{ row liveRow }

// Compare sets in a report what has happened since the last one.
func (l *Live) Compare(r *Report, counted map[*history.Writer]map[string][]int64, now time.Time) {
	l.row.compare(r, counted, now)
}
