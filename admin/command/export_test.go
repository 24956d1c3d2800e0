package command

import "time"

func init() { forgetPause = time.Millisecond }
