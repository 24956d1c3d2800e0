package option

// Parts has what an answer of a language model costs: numbers of tokens, of searches, and of requests. They
// do not overlap.
type Parts [PartCount]int64

// The indexes of Parts.
const (
	Input          = iota // text of the prompt that no cache had
	CacheRead             // text and pictures of the prompt that came from a cache
	CacheWrite            // text that was written to a cache for five minutes
	CacheWrite1h          // text that was written to a cache for an hour
	Output                // text of the answer, with its reasoning
	AudioInput            // sound in the prompt
	AudioCacheRead        // sound of the prompt that came from a cache
	AudioOutput           // sound in the answer
	ImageInput            // pictures in the prompt
	ImageOutput           // pictures in the answer
	Search                // searches, or units of a search
	Request               // 1 for a request that is charged
	PartCount
)

// PartNames has the names of Parts.
var PartNames = [PartCount]string{"input", "cache_read", "cache_write", "cache_write_1h", "output",
	"audio_input", "audio_cache_read", "audio_output", "image_input", "image_output", "search", "request"}

// InputTokens returns the tokens of a prompt, from a cache or not.
func (p Parts) InputTokens() int64 {
	return p[Input] + p[CacheRead] + p[CacheWrite] + p[CacheWrite1h] + p[AudioInput] + p[AudioCacheRead] +
		p[ImageInput]
}

// OutputTokens returns the tokens of an answer.
func (p Parts) OutputTokens() int64 { return p[Output] + p[AudioOutput] + p[ImageOutput] }
