package ratelimit

// Algorithm selects how a Limit counts hits.
type Algorithm uint8

const (
	// SlidingWindow adds the count of the current window to the count of the previous window, weighted by
	// the fraction of it that overlaps the last Window. It is the default.
	SlidingWindow Algorithm = iota
	// FixedWindow counts the hits of a window that begins with the first of them.
	FixedWindow
	// TokenBucket holds up to Burst tokens and gains Events tokens each Window.
	TokenBucket
	// SlidingLog keeps the time of each hit. It is exact. A row stores up to Events times, so Events must
	// not exceed MaxLogEvents.
	SlidingLog
	// GCRA spaces hits evenly, Events in a Window, with up to Burst at once.
	GCRA
	// InFlight admits up to Events hits at once, each until its Slot is released. It has no Window.
	InFlight
)
