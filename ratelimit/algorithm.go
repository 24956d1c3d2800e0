package ratelimit

// Algorithm selects how a Limit counts hits.
type Algorithm uint8

const (
	// SlidingWindow approximates a sliding window: the current window's count plus a share of the previous
	// window's count, as large as the share of the previous window in the last Window. It is the default.
	SlidingWindow Algorithm = iota
	// FixedWindow counts hits in windows. A window begins with its first hit.
	FixedWindow
	// TokenBucket holds up to Burst tokens and gains Events tokens each Window.
	TokenBucket
	// SlidingLog keeps the time of each hit. It is exact. A row stores up to Events times, so Events must
	// not exceed MaxLogEvents.
	SlidingLog
	// GCRA spaces hits evenly, Events in a Window, and allows bursts of up to Burst hits.
	GCRA
	// InFlight allows up to Events concurrent hits, each until its Hold is released. It has no Window.
	InFlight
)
