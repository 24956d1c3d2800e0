package edge

// Setting is one setting of a configuration: what the Caddyfile, the JSON of Caddy, the
// configuration of Traefik and the documentation have in common.
type Setting struct {
	Name     string // in a Caddyfile and in JSON; Traefik has it in camel case
	Form     Form
	Args     string                  // what the arguments in a Caddyfile must be; "" is Want
	Want     string                  // what the value must be
	Check    func(text string) error // checks text that differs from what a field in JSON holds, such as 2m from 2m0s; may be nil
	Settings []Setting               // of a block

	// Read reads a setting of a limit; nil if the adapters read it.
	Read func(l *ConfiguredLimit, s *LimitSettings) error

	// The documentation: how a Caddyfile has the arguments, what the setting means, and what holds
	// without it. Names are those of Caddy, and links are from the folder docs.
	Syntax, Help, Default string
}

// Form is how a Caddyfile has a setting.
type Form uint8

// The values of Form.
const (
	OneWord Form = iota
	Words        // one or several, which are joined with spaces
	Switch       // on, off or nothing, which is on
	Block        // of the Setting's Settings
)

// WantArgs says what the arguments in a Caddyfile must be.
func (s *Setting) WantArgs() string {
	if s.Args != "" {
		return s.Args
	}
	return s.Want
}
