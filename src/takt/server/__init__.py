"""The HTTP side: OpenAI's protocol, chat templates, streaming, errors, authentication.

Turns text into token ids and back. Schedules nothing and runs no model.
"""
