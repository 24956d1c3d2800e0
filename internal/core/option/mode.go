package option

// Without selects what happens to the requests that lack the key of a limit.
type Without string

// The values of Without.
const (
	WithoutShare  Without = "share"  // they share one quota
	WithoutSkip   Without = "skip"   // the limit does not apply
	WithoutRefuse Without = "refuse" // they are refused with 401
)

// Mode selects the effect of a limit.
type Mode string

// The values of Mode.
const (
	Enforce Mode = "enforce"
	Shadow  Mode = "shadow" // the limit counts and reports, and never refuses
	Off     Mode = "off"    // the limit is ignored
)
