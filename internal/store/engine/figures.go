package engine

// Histogram counts values by size.
type Histogram struct {
	// Counts[i] counts the values that are above 1<<(i-1) and at most 1<<i. Counts[0] counts those
	// that are at most 1, and the last element also those that are larger.
	Counts []int64 `json:"counts"`

	// Sum is the sum of the values.
	Sum int64 `json:"sum"`
}

// Stats is what a store has done since it was made, and what is under way.
type Stats struct {
	Requests   int64 // calls of Take and Reset that went to the database
	Batches    int64 // batches in which they went
	Statements int64 // statements, retries included
	RolledBack int64 // transactions undone because a request of several limits did not fit
	Blocked    int64 // requests refused without asking the database
	Leased     int64 // requests that passed without asking the database, see Limit.Lease
	Failures   int64 // batches for which no decision came
	Settled    int64 // settlements that were made
	Unsettled  int64 // settlements of which it is not known whether they had their effect

	// Errors counts errors by class, see pg.Classes. It has an element for each class.
	Errors map[string]int64

	Sizes Histogram // requests in a batch
	Waits Histogram // microseconds from the arrival of a batch's first request to the batch's start
	Times Histogram // microseconds from a batch's start to its end

	// What there is now.
	BlockedKeys int64 // keys that are known to be used up
	Leases      int64 // keys of which units are charged in advance
	LeasedUnits int64 // these units
	Waiting     int64 // requests that wait for a decision of the database
	InFlight    int64 // slots that requests of this process hold
}

// done are the counts of what has been done, and now are those of what there is.
func (s *Stats) done() []*int64 {
	return []*int64{&s.Requests, &s.Batches, &s.Statements, &s.RolledBack, &s.Blocked, &s.Leased, &s.Failures,
		&s.Settled, &s.Unsettled, &s.Sizes.Sum, &s.Waits.Sum, &s.Times.Sum}
}

func (s *Stats) now() []*int64 {
	return []*int64{&s.BlockedKeys, &s.Leases, &s.LeasedUnits, &s.Waiting, &s.InFlight}
}

// Add adds the stats of another store.
func (s *Stats) Add(other *Stats) {
	s.add(other, 1)
	to := s.now()
	for i, n := range other.now() {
		*to[i] += *n
	}
}

// Subtract leaves out what the store had done before.
func (s *Stats) Subtract(before *Stats) { s.add(before, -1) }

// add adds what another store has done so many times.
func (s *Stats) add(other *Stats, times int64) {
	to := s.done()
	for i, n := range other.done() {
		*to[i] += times * *n
	}
	if s.Errors == nil {
		s.Errors = map[string]int64{}
	}
	for class, n := range other.Errors {
		s.Errors[class] += times * n
	}
	addCounts(&s.Sizes, &other.Sizes, times)
	addCounts(&s.Waits, &other.Waits, times)
	addCounts(&s.Times, &other.Times, times)
}

func addCounts(sum, other *Histogram, times int64) {
	for len(sum.Counts) < len(other.Counts) {
		sum.Counts = append(sum.Counts, 0)
	}
	for i, n := range other.Counts {
		sum.Counts[i] += times * n
	}
}
