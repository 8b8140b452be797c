"""What happens to a message.

`router` is the table of what is treated specially; a method without a row goes upstream. `bridge`
answers modern clients before a legacy upstream. `conversion` turns slow calls into tasks and parks those
that ask: `live` is a call on its way, `rounds` and `parking` are its client's requests. `runner` owns every
call in flight and every running task, whose record `following` keeps. `task_methods` and `listen` serve
what clients ask about tasks; `recovery` settles what an earlier process left. `passthrough` is a legacy
client's own session. `base` is the seam towards `downstream`.
"""
