package ratelimit

// Algorithm is the way in which a Limit counts.
type Algorithm uint8

const (
	// SlidingWindow adds the count of the current window to the count of the
	// previous window, weighted by the part of it that lies within the last Window.
	// The default.
	SlidingWindow Algorithm = iota
	// FixedWindow counts from the first hit until Window has passed.
	FixedWindow
	// TokenBucket holds up to Burst tokens and gains Events tokens each Window.
	TokenBucket
	// SlidingLog keeps the time of each hit. It is exact, and a row holds up to
	// Events times, so Events is at most MaxLogEvents.
	SlidingLog
	// GCRA spaces hits evenly, Events in a Window, with up to Burst at once.
	GCRA
	// InFlight admits up to Events hits at once, each until its Slot is released. It has no Window.
	InFlight
)
